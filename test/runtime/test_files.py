"""Files that are written whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from split_infer_ros.runtime.files import write_whole


def test_a_file_and_its_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_whole(path, b"one")
    write_whole(path, b"other")
    assert path.read_bytes() == b"other"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    path.chmod(0o644)
    write_whole(path, b"other")
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SystemExit(0)])
def test_what_was_there_stays_if_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")

    def fail(file: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        write_whole(path, b"other")
    assert path.read_bytes() == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_reader_keeps_what_it_opened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    with path.open("rb") as reader:
        write_whole(path, b"other")
        assert reader.read() == b"one"
