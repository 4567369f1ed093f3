"""Files that users name: what is no regular file is refused at once, whatever its name."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from split_infer_ros.runtime.user_files import exists, is_folder, is_regular, read_regular, user_path

TOO_LONG = "a" * 5000


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(path, 5) == read_regular(tmp_path / "link", 5) == b"12345"
    assert is_regular(tmp_path / "link")


def test_a_file_larger_than_agreed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        read_regular(path, 1000)


def test_a_file_that_states_no_size_is_read() -> None:
    assert read_regular(Path("/proc/self/status"), 2**20).startswith(b"Name:")
    with pytest.raises(ValueError, match="more than 100 bytes"):
        read_regular(Path("/proc/self/status"), 100)


def test_no_more_memory_is_taken_than_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    tracemalloc.start()
    try:
        read_regular(path, 2**40)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_pipes_devices_and_folders_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "zero", tmp_path):
        with pytest.raises(OSError, match="not a file with contents"):
            read_regular(path, 10)
        assert not is_regular(path)
        assert exists(path)
        assert is_folder(path) == (path == tmp_path)


def test_what_may_not_be_looked_at_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "stat", refuse)
    assert not any(look(Path("a")) for look in (is_regular, is_folder, exists))


@pytest.mark.parametrize("name", [TOO_LONG, "a\0b", "loop", "missing"])
def test_a_name_that_names_nothing_is_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert not any(look(tmp_path / name) for look in (is_regular, is_folder, exists))
    with pytest.raises((OSError, ValueError)):
        read_regular(tmp_path / name, 10)


def test_the_home_of_nobody_is_no_error() -> None:
    assert user_path("~/a") == Path.home() / "a"
    assert user_path("~nobody_of_this_name/a") == Path("~nobody_of_this_name/a")
