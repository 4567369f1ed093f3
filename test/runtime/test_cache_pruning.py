"""What was not used for long leaves the user's cache folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from split_infer_ros.measurements.database import default_path
from split_infer_ros.runtime.cache import hold
from split_infer_ros.runtime.cache_pruning import DEFAULT_BYTES, REMADE, limit_cache, prune_cache, write_cached

HOUR, DAY = 3600.0, 86_400.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "split_infer_ros"
    limit_cache(DEFAULT_BYTES)


def written(path: Path, nbytes: int = 1000, *, age_s: float = HOUR) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(nbytes))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_was_not_used_for_90_days_is_removed(folder: Path) -> None:
    for kind in REMADE:
        written(folder / kind / "new.x", age_s=89 * DAY)
        written(folder / kind / "old.x", age_s=91 * DAY)
    prune_cache()
    assert names(folder) == [f"{kind}/new.x" for kind in sorted(REMADE)]


def test_the_longest_unused_is_removed_first(folder: Path) -> None:
    written(folder / "blobs" / "a.blob", age_s=3 * HOUR)
    written(folder / "onnx" / "b.onnx", age_s=2 * HOUR)
    written(folder / "weights" / "c.weights", age_s=4 * HOUR)
    written(folder / "blobs" / "d.blob", age_s=HOUR)
    limit_cache(2500)
    prune_cache()
    assert names(folder) == ["blobs/d.blob", "onnx/b.onnx"]
    prune_cache()
    assert names(folder) == ["blobs/d.blob", "onnx/b.onnx"]


def test_files_of_one_thing_leave_together(folder: Path) -> None:
    """The newest of them says when the thing was used."""
    written(folder / "onnx" / "one.onnx", age_s=100 * DAY)
    written(folder / "onnx" / "one.onnx.data", age_s=100 * DAY)
    written(folder / "onnx" / "one.openvino-2026.agreed", age_s=DAY)
    written(folder / "onnx" / "two.onnx", age_s=100 * DAY)
    written(folder / "onnx" / "two.onnx.data", age_s=99 * DAY)
    prune_cache()
    assert names(folder) == ["onnx/one.onnx", "onnx/one.onnx.data", "onnx/one.openvino-2026.agreed"]


def test_what_cannot_be_made_again_stays(folder: Path) -> None:
    written(default_path(), age_s=200 * DAY)
    for kind in ("int8", "models", "native", "compare"):
        written(folder / kind / "a.x", age_s=200 * DAY)
    before = names(folder)
    limit_cache(0)
    prune_cache()
    assert names(folder) == before


def test_what_a_process_holds_stays(folder: Path) -> None:
    held = written(folder / "onnx" / "held.onnx", age_s=100 * DAY)
    written(folder / "onnx" / "held.onnx.data", age_s=100 * DAY)
    hold(held)
    for path in folder.rglob("held*"):
        os.utime(path, (time.time() - 100 * DAY,) * 2)
    written(folder / "onnx" / "free.onnx", age_s=100 * DAY)
    prune_cache()
    assert names(folder) == ["onnx/held.onnx", "onnx/held.onnx.data"]


def test_what_is_being_written_stays(folder: Path) -> None:
    written(folder / "onnx" / "fresh.onnx", age_s=5.0)
    written(folder / "blobs" / "a.blob123.part", age_s=2 * HOUR)
    written(folder / "onnx" / "exporting" / "a.onnx", age_s=2 * HOUR)
    written(folder / "blobs" / "b.blob123.part", age_s=2 * DAY)
    written(folder / "onnx" / "left_over" / "a.onnx", age_s=2 * DAY)
    os.utime(folder / "onnx" / "left_over", (time.time() - 2 * DAY,) * 2)
    limit_cache(0)
    prune_cache()
    assert names(folder) == ["blobs/a.blob123.part", "onnx/exporting/a.onnx", "onnx/fresh.onnx"]
    assert not (folder / "onnx" / "left_over").exists()


def test_it_runs_when_something_is_written(folder: Path) -> None:
    written(folder / "blobs" / "old.blob")
    limit_cache(1500)
    write_cached(folder / "blobs" / "new.blob", bytes(1000))
    assert names(folder) == ["blobs/new.blob"]
    assert (folder / "blobs" / "new.blob").stat().st_mode & 0o777 == 0o600


def test_files_elsewhere_are_left_alone(folder: Path, tmp_path: Path) -> None:
    outside = written(tmp_path / "mine" / "model.weights", age_s=200 * DAY)
    (folder / "weights").mkdir(parents=True)
    (folder / "weights" / "linked").symlink_to(outside.parent)
    (folder / "weights" / "link.weights").symlink_to(outside)
    limit_cache(0)
    prune_cache()
    assert outside.exists()


def test_a_folder_that_is_missing_or_odd_is_no_failure(folder: Path) -> None:
    prune_cache()
    folder.mkdir()
    (folder / "onnx").write_text("a file")
    (folder / "blobs").mkdir()
    os.mkfifo(folder / "blobs" / "pipe.blob")
    os.utime(folder / "blobs" / "pipe.blob", (0, 0))
    prune_cache()
    assert (folder / "onnx").is_file()


def test_what_cannot_be_removed_costs_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(folder / "onnx" / "a.onnx", age_s=100 * DAY)
    written(folder / "onnx" / "left_over" / "b.onnx", age_s=100 * DAY)
    os.utime(folder / "onnx" / "left_over", (0, 0))

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    before = names(folder)
    prune_cache()
    assert names(folder) == before
