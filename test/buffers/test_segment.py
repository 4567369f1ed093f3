"""Files of shared memory: how they are made, who can attach them, and what a killed process leaves."""

from __future__ import annotations

import errno
import gc
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from split_infer_ros.buffers import segment as module
from split_infer_ros.buffers.segment import NAME, PREFIX, Segment, remove_leftovers, segment_bytes
from split_infer_ros.errors import ConfigurationError, HandleError

SLOTS, SLOT_BYTES, POOL = 3, 5000, 2**63 - 1
WAIT_S = 60.0

pytestmark = pytest.mark.usefixtures("folder")


def make() -> Segment:
    return Segment.create(SLOTS, SLOT_BYTES, POOL)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def child(folder: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a program in another process until it has printed a line. The process is killed in the end."""
    program = (
        "import sys, pathlib\nfrom split_infer_ros.buffers import segment\n"
        f"segment.FOLDER = pathlib.Path({str(folder)!r})\n{program}\nprint('ready', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def refused(name: str) -> str:
    with pytest.raises(HandleError) as refusal:
        Segment.attach(name)
    assert refusal.value.reason == "foreign"
    return str(refusal.value)


def test_reader_and_owner_see_the_same_bytes_and_header(folder: Path) -> None:
    owner = make()
    reader = Segment.attach(owner.name)
    assert (reader.slots, reader.slot_bytes, reader.pool) == (SLOTS, SLOT_BYTES, POOL)
    for index in range(SLOTS):
        owner.slot(index)[:] = bytes([index + 1]) * SLOT_BYTES
    for index in range(SLOTS):
        assert bytes(reader.slot(index)) == bytes([index + 1]) * SLOT_BYTES
    assert (reader.slots, reader.slot_bytes, reader.pool) == (SLOTS, SLOT_BYTES, POOL)
    assert (folder / owner.name).stat().st_size == segment_bytes(SLOTS, SLOT_BYTES) == len(owner.data)


def test_a_segment_is_private_with_a_random_name(folder: Path) -> None:
    owners = [make() for _ in range(20)]
    names = {owner.name for owner in owners}
    assert len(names) == 20
    assert all(NAME.fullmatch(name) for name in names)
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in names} == {0o600}
    for position in range(len(PREFIX), len(PREFIX) + 32, 8):  # no part of it is the same each time
        assert len({name[position : position + 8] for name in names}) == 20


def test_an_existing_file_is_never_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = folder / "victim"
    victim.write_bytes(b"precious")
    name = PREFIX + 32 * "0"
    monkeypatch.setattr(module.secrets, "token_hex", lambda size: 2 * size * "0")
    (folder / name).write_bytes(b"somebody's")
    with pytest.raises(ConfigurationError, match="exists"):
        make()
    assert (folder / name).read_bytes() == b"somebody's"
    (folder / name).unlink()
    (folder / name).symlink_to(victim)
    with pytest.raises(ConfigurationError, match="exists"):
        make()
    (folder / name).unlink()
    (folder / name).symlink_to(folder / "new")  # a dangling link would let O_CREAT make a file elsewhere
    with pytest.raises(ConfigurationError, match="exists"):
        make()
    assert victim.read_bytes() == b"precious"
    assert not (folder / "new").exists()


def test_links_are_not_followed(folder: Path) -> None:
    owner = make()
    link = PREFIX + 32 * "a"
    (folder / link).symlink_to(folder / owner.name)
    assert "symbolic link" in refused(link)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../shadow",
        f"../{PREFIX}{32 * 'a'}",
        f"{PREFIX}../../etc/passwd",
        f"{PREFIX}{31 * 'a'}",
        f"{PREFIX}{33 * 'a'}",
        f"{PREFIX}{32 * 'A'}",
        f"{PREFIX}{32 * 'a'}\n",
        f"{PREFIX}{32 * 'a'}\0",
        f"/dev/shm/{PREFIX}{32 * 'a'}",
        "fastdds_0123456789abcdef",
    ],
)
def test_other_names_are_refused_unseen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_open(*arguments: object) -> int:
        raise AssertionError("opened")

    monkeypatch.setattr(module.os, "open", no_open)
    assert "not the name of a" in refused(name)


def test_a_missing_segment_is_refused() -> None:
    assert "No such file" in refused(PREFIX + 32 * "a")


def header(magic: bytes = module.MAGIC, version: int = 1, slots: int = SLOTS, slot_bytes: int = SLOT_BYTES) -> bytes:
    return struct.pack("<8sIIQQ", magic, version, slots, slot_bytes, POOL)


FULL = segment_bytes(SLOTS, SLOT_BYTES)


@pytest.mark.parametrize(
    ("begin", "size", "why"),
    [
        (header(magic=b"SPLITINX"), FULL, "not made by this version"),
        (header(version=2), FULL, "not made by this version"),
        (header(slots=SLOTS + 100), FULL, "does not fit its header"),
        (header(slots=2**32 - 1, slot_bytes=2**64 - 1), FULL, "does not fit its header"),
        (header(slot_bytes=SLOT_BYTES + 10_000), FULL, "does not fit its header"),
        (header(), FULL - 1, "does not fit its header"),
        (header(), FULL + 1, "does not fit its header"),
        (header(), len(header()), "does not fit its header"),
        (header()[:-1], len(header()) - 1, "too short"),
        (b"", 0, "too short"),
    ],
)
def test_a_file_that_is_no_segment_is_refused(folder: Path, begin: bytes, size: int, why: str) -> None:
    path = folder / (PREFIX + 32 * "a")
    path.touch(mode=0o600)
    path.write_bytes(begin)
    os.truncate(path, size)
    before = open_files()
    assert why in refused(path.name)
    assert open_files() <= before


def test_a_truncated_segment_is_refused(folder: Path) -> None:
    owner = make()
    os.truncate(folder / owner.name, FULL // 2)
    assert "does not fit its header" in refused(owner.name)


def test_others_files_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = make()
    for mode in (0o640, 0o606, 0o700, 0o4600):
        (folder / owner.name).chmod(mode)
        assert "not this user's own" in refused(owner.name)
    (folder / owner.name).chmod(0o600)
    Segment.attach(owner.name)
    monkeypatch.setattr(module.os, "getuid", lambda: folder.stat().st_uid + 1)
    assert "not this user's own" in refused(owner.name)


def test_a_folder_and_a_pipe_are_refused(folder: Path) -> None:
    (folder / (PREFIX + 32 * "a")).mkdir()
    os.mkfifo(folder / (PREFIX + 32 * "b"), 0o600)
    refused(PREFIX + 32 * "a")
    refused(PREFIX + 32 * "b")


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.ENOENT])
def test_an_unwritable_folder_is_a_clear_error(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_open(*arguments: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(module.os, "open", no_open)
    with pytest.raises(ConfigurationError, match="make it writable or take another transport") as refusal:
        make()
    assert os.strerror(error) in str(refusal.value)


def test_a_full_folder_is_an_error_before_anything_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(descriptor: int, offset: int, size: int) -> None:
        assert (offset, size) == (0, FULL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.os, "posix_fallocate", no_room)
    before = open_files()
    with pytest.raises(ConfigurationError, match=r"no room for a pool of 3 slots of 5,000 bytes .*batch_size"):
        make()
    assert list(folder.iterdir()) == []
    assert open_files() <= before


def test_more_than_the_real_folder_has_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path("/dev/shm")
    monkeypatch.setattr(module, "FOLDER", real)
    facts = os.statvfs(real)
    before = set(real.glob(PREFIX + "*"))
    with pytest.raises(ConfigurationError, match="no room"):
        Segment.create(2, facts.f_blocks * facts.f_frsize, POOL)
    assert {path for path in real.glob(PREFIX + "*") if path.stat().st_size > 2**30} <= before


def test_all_memory_is_reserved_from_the_beginning(folder: Path) -> None:
    owner = make()
    assert (folder / owner.name).stat().st_blocks * 512 >= FULL


def test_a_closed_owner_removes_the_name_but_not_the_memory(folder: Path) -> None:
    owner = make()
    reader, other = Segment.attach(owner.name), Segment.attach(owner.name)
    owner.slot(1)[:4] = b"kept"
    assert reader.owner_lives
    assert owner.owner_lives
    other.close()  # a reader's end takes nothing
    assert (folder / owner.name).exists()
    owner.close()
    assert list(folder.iterdir()) == []
    assert not reader.owner_lives
    assert bytes(reader.slot(1)[:4]) == b"kept"
    refused(owner.name)


def test_no_file_stays_open() -> None:
    gc.collect()
    before = open_files()
    for _ in range(20):
        owner = make()
        reader = Segment.attach(owner.name)
        reader.close()
        forgotten = Segment.attach(owner.name)  # goes with its last user
        del forgotten
        owner.close()
    gc.collect()
    assert open_files() <= before


def test_a_slot_is_held_by_one_at_a_time() -> None:
    owner = make()
    first, second = Segment.attach(owner.name), Segment.attach(owner.name)
    assert first.lock_slot(0)
    assert not second.lock_slot(0)
    assert not owner.lock_slot(0)
    assert second.lock_slot(1)  # another one
    first.unlock_slot(0)
    assert owner.lock_slot(0)
    owner.unlock_slot(0)
    second.close()
    assert first.lock_slot(1)
    assert owner.owner_lives  # slot locks are not the owner's


def test_the_owner_knows_whether_anybody_reads() -> None:
    owner = make()
    assert not owner.has_readers
    first, second = Segment.attach(owner.name), Segment.attach(owner.name)
    assert owner.has_readers
    first.close()
    assert owner.has_readers
    second.close()
    assert not owner.has_readers


def test_the_owners_lock_ends_with_kill_9(folder: Path) -> None:
    with child(folder, "found = segment.Segment.create(3, 5000, 7)") as process:
        (path,) = folder.iterdir()
        reader = Segment.attach(path.name)
        assert reader.owner_lives
        assert remove_leftovers() == []
        process.kill()
        process.wait(WAIT_S)
        assert path.exists()
        assert not reader.owner_lives
        reader.close()
    assert remove_leftovers() == [path.name]
    assert list(folder.iterdir()) == []


def test_a_readers_slot_lock_ends_with_kill_9(folder: Path) -> None:
    owner = make()
    program = f"found = segment.Segment.attach({owner.name!r})\nassert found.lock_slot(2)"
    with child(folder, program) as process:
        assert not owner.lock_slot(2)
        process.kill()
        process.wait(WAIT_S)
        assert owner.lock_slot(2)
    assert (folder / owner.name).exists()


@pytest.mark.parametrize("end", ["kill", "exit", "close"])
def test_a_reader_that_ends_does_not_unlink_a_live_segment(folder: Path, end: str) -> None:
    """Before 3.13, Python's resource tracker unlinks segments of multiprocessing.shared_memory this way."""
    owner = make()
    program = f"found = segment.Segment.attach({owner.name!r})\n" + ("found.close()" if end == "close" else "")
    program += "\nassert not any('multiprocessing' in name for name in sys.modules)"
    with child(folder, program) as process:
        if end == "kill":
            process.kill()
        assert process.stdin is not None
        process.stdin.close()
        process.wait(WAIT_S)
    assert (folder / owner.name).exists()
    Segment.attach(owner.name)


def test_only_our_own_leftovers_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with child(folder, "found = [segment.Segment.create(3, 5000, 7) for _ in range(3)]") as process:
        process.kill()
        process.wait(WAIT_S)
    left = {path.name for path in folder.iterdir()}
    assert len(left) == 3
    live = make()
    aliens = ["fastdds_0123", "sem.something", f"{PREFIX}notes", f"{PREFIX}{33 * 'a'}", f"x{PREFIX}{32 * 'a'}"]
    for alien in aliens:
        (folder / alien).write_bytes(b"x")
    (folder / (PREFIX + 32 * "b")).symlink_to(folder / "fastdds_0123")
    (folder / (PREFIX + 32 * "c")).mkdir()
    stay = {*aliens, live.name, PREFIX + 32 * "b", PREFIX + 32 * "c"}

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "getuid", lambda: folder.stat().st_uid + 1)  # they are another user's
        assert remove_leftovers() == []
    assert {path.name for path in folder.iterdir()} == left | stay
    before = open_files()
    assert set(remove_leftovers()) == left
    assert {path.name for path in folder.iterdir()} == stay
    assert remove_leftovers() == []
    assert open_files() <= before
    Segment.attach(live.name)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make files of another user")
def test_a_real_other_users_leftover_stays(folder: Path) -> None:
    path = folder / (PREFIX + 32 * "a")
    path.touch(mode=0o600)
    path.write_bytes(header())
    os.truncate(path, FULL)
    os.chown(path, 12345, 12345)
    assert "not this user's own" in refused(path.name)
    assert remove_leftovers() == []
    assert path.exists()


def test_a_new_segment_survives_a_neighbours_cleaning(folder: Path) -> None:
    """Between its creation and its lock, a file looks like a leftover."""
    stop = threading.Event()

    def clean() -> None:
        while not stop.is_set():
            remove_leftovers()

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    try:
        made = []
        end = time.monotonic() + WAIT_S
        while len(made) < 300 and time.monotonic() < end:
            made.append(make())
            assert (folder / made[-1].name).exists()
            if len(made) % 20 == 0:
                for owner in made[-20:]:
                    assert (folder / owner.name).exists()
                    owner.close()
    finally:
        stop.set()
        cleaner.join(WAIT_S)


def test_a_reader_does_not_import_torch() -> None:
    """The start takes a small part of the time that torch takes, measured in the same minute."""
    package = Path(module.__file__).parents[2]

    def seconds(program: str) -> float:
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": str(package)})
        return time.monotonic() - begin

    ours = (
        "import sys\nfrom split_infer_ros.buffers import segment, slot_table, slots\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    nothing = min(seconds("pass") for _ in range(3))
    assert min(seconds(ours) for _ in range(3)) - nothing < 0.2 * (seconds("import torch") - nothing)
