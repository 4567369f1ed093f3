"""The user's cache folder, and files that a process holds there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from split_infer_ros.runtime.cache import (
    RENEW_S,
    cache_folder,
    cache_path,
    hold,
    is_held,
    mark_used,
    warn_if_not_kept,
    warn_once,
)

HOLDER = """
import sys
from pathlib import Path
from split_infer_ros.runtime.cache import hold
hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "split_infer_ros"


def written(path: Path, *, age_s: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"content")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def is_free(path: Path) -> bool:
    with path.open("rb") as file:
        return not is_held(file.fileno())


def test_the_folder_is_the_users(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == folder
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("", "not/absolute"):  # the XDG specification ignores relative paths
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / "home" / ".cache" / "split_infer_ros"


def test_the_name_of_a_thing_depends_on_its_facts(folder: Path) -> None:
    path = cache_path("onnx", "one", ".x.y")
    assert (path.parent, path.name.partition(".")[2], len(path.name)) == (folder / "onnx", "x.y", 36)
    assert path == cache_path("onnx", "one", ".x.y") != cache_path("onnx", "other", ".x.y")


def test_what_cannot_be_kept_is_said_once_for_a_folder(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("onnx/a", "onnx/b", "blobs/c"):
        with warn_if_not_kept(folder / name, "it is made again"):
            raise OSError("the disk is full")
    assert caplog.messages == [
        f"{folder / name} cannot be kept, so it is made again: the disk is full." for name in ("onnx/a", "blobs/c")
    ]
    caplog.clear()
    warn_once(folder / "onnx", "100% of it is damaged.")
    warn_once(folder / "onnx" / "a", "100% of it is damaged.")
    assert caplog.messages == ["100% of it is damaged."]


def test_only_failures_to_write_become_warnings(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError), warn_if_not_kept(folder / "onnx" / "a", "it is made again"):
        raise RuntimeError
    assert not caplog.messages
    with warn_if_not_kept(folder / "onnx" / "a", "it is made again", Exception):
        raise RuntimeError("no")
    assert len(caplog.messages) == 1


def test_use_is_marked_once_a_day(folder: Path) -> None:
    recent, old = written(folder / "recent", age_s=RENEW_S / 2), written(folder / "old", age_s=RENEW_S * 2)
    before = recent.stat()
    mark_used(recent)
    mark_used(old)
    mark_used(folder / "missing")
    assert recent.stat().st_ctime_ns == before.st_ctime_ns, "a digest that is known stays known"
    assert time.time() - old.stat().st_mtime < 60


def test_a_file_is_held_until_its_process_ends(folder: Path) -> None:
    path = written(folder / "onnx" / "a.onnx")
    assert is_free(path)
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert not is_free(path)
        process.kill()
        process.wait()
        assert is_free(path)


def test_a_file_of_the_same_name_is_held_too(folder: Path) -> None:
    path = written(folder / "onnx" / "b.onnx", age_s=RENEW_S * 2)
    hold(path)
    assert not is_free(path)
    assert time.time() - path.stat().st_mtime < 60
    written(folder / "new").replace(path)
    assert is_free(path)
    hold(path)
    hold(path)
    assert not is_free(path)


def test_holding_what_is_not_there_does_nothing(folder: Path, tmp_path: Path) -> None:
    hold(folder / "missing")
    outside = written(tmp_path / "elsewhere" / "model.weights", age_s=RENEW_S * 2)
    before = outside.stat()
    hold(outside)
    assert is_free(outside)
    assert outside.stat().st_mtime_ns == before.st_mtime_ns, "a user's own file stays as it is"
