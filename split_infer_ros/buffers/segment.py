"""A piece of memory that processes of one host share: made once, found by name, gone with its owner.

The name is random, the file is created exclusively with mode 0600 and never through a link. The owner holds a
lock on the file for as long as it lives, so that anybody can tell a segment in use from a leftover: locks end
with their process, however it ends. No torch here: a reader starts in milliseconds.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import secrets
import stat
import struct
import weakref
from contextlib import suppress
from pathlib import Path

from split_infer_ros.errors import ConfigurationError, HandleError
from split_infer_ros.runtime.shortage import shortage

FOLDER = Path("/dev/shm")
PREFIX = "split_infer_"
NAME = re.compile(rf"{PREFIX}[0-9a-f]{{32}}")
MAGIC = b"SPLITINF"
VERSION = 1
_HEADER = struct.Struct("<8sIIQQ")  # magic, version, slots, bytes a slot, pool
_LOCK = struct.Struct("hhqqi")  # struct flock: type, whence, start, length, pid
PAGE = mmap.PAGESIZE
OWNER_LOCK = 0  # byte of the file whose lock the owner holds; slot n's reader holds byte n + 1
READERS_LOCK = 2**40  # all readers share this one
HEAD_LOCK = READERS_LOCK + 1  # of the one reader that takes what is published


class Segment:
    """Shared memory of ``slots`` slots, with a page of bookkeeping before them.

    Attributes:
        name: of the file in FOLDER.
        pool: identity of the slot pool that lies here.
        slots, slot_bytes: how many and how large.
        data: the whole of it, the bookkeeping included.
    """

    def __init__(self, name: str, descriptor: int, writable_owner: bool) -> None:
        self.name = name
        self._descriptor = descriptor
        self._owned = writable_owner
        self.data = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        _, _, self.slots, self.slot_bytes, self.pool = _HEADER.unpack_from(self.data)
        self._let_go = weakref.finalize(self, os.close, descriptor)  # in close, or with the last user

    @classmethod
    def create(cls, slots: int, slot_bytes: int, pool: int) -> Segment:
        """A new segment that this process owns.

        Raises:
            ConfigurationError: the memory cannot be had; nothing is left behind.
        """
        size = segment_bytes(slots, slot_bytes)
        name, descriptor = _make_file()
        try:
            os.posix_fallocate(descriptor, 0, size)  # a full folder is an error here, not a crash at first touch
            os.pwrite(descriptor, _HEADER.pack(MAGIC, VERSION, slots, slot_bytes, pool), 0)
            return cls(name, descriptor, writable_owner=True)
        except OSError as error:
            os.close(descriptor)
            (FOLDER / name).unlink(missing_ok=True)
            raise ConfigurationError(
                f"{FOLDER} has no room for a pool of {slots} slots of {slot_bytes:,} bytes "
                f"({os.strerror(error.errno or 0)}: {shortage(size, _bytes_free(), str(FOLDER))}); "
                "take a smaller batch_size, fewer pool_slots or a later split_point."
            ) from error

    @classmethod
    def attach(cls, name: str) -> Segment:
        """The segment of that name, as a reader.

        Raises:
            HandleError: ``foreign``: there is none, or it is not what this package makes, or another user's.
        """
        if not NAME.fullmatch(name):
            raise HandleError("foreign", f"'{name}' is no name of a slot pool in shared memory.")
        try:
            descriptor = os.open(FOLDER / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise HandleError("foreign", f"The slot pool {name} cannot be opened ({why}).") from error
        try:
            _check(name, descriptor)
            _set_lock(descriptor, fcntl.F_RDLCK, READERS_LOCK)
            return cls(name, descriptor, writable_owner=False)
        except HandleError:
            os.close(descriptor)
            raise
        except OSError as error:
            os.close(descriptor)
            raise HandleError("foreign", f"The slot pool {name} cannot be mapped ({error.strerror}).") from error

    @property
    def owner_lives(self) -> bool:
        """True while the process that made it is there."""
        return self._owned or _is_locked(self._descriptor, OWNER_LOCK)

    @property
    def has_readers(self) -> bool:
        """True while another process, or another part of this one, has it attached."""
        return _is_locked(self._descriptor, READERS_LOCK)

    @property
    def is_whole(self) -> bool:
        """False once somebody cut the file short: whoever touches memory that is missing is ended by SIGBUS."""
        return os.fstat(self._descriptor).st_size >= len(self.data)

    def claim(self) -> bool:
        """As a reader, become the one that takes what is published, until ``disclaim`` or the process ends.

        Returns:
            Whether this reader is the one. It may ask again and again.
        """
        return _try_lock(self._descriptor, HEAD_LOCK)

    def disclaim(self) -> None:
        """As a reader, leave what is published to another one."""
        _set_lock(self._descriptor, fcntl.F_UNLCK, HEAD_LOCK)

    def mend(self) -> None:
        """As its owner, make a file that was cut short whole again; what lay there is zeros then."""
        if not self.is_whole:
            os.truncate(self._descriptor, len(self.data))
            _HEADER.pack_into(self.data, 0, MAGIC, VERSION, self.slots, self.slot_bytes, self.pool)

    def lock_slot(self, slot: int) -> bool:
        """Become the one who holds a slot; False if another process does. Ends by unlock_slot or with the process."""
        return _try_lock(self._descriptor, slot + 1)

    def unlock_slot(self, slot: int) -> None:
        """Let go of a slot."""
        _set_lock(self._descriptor, fcntl.F_UNLCK, slot + 1)

    def slot(self, index: int) -> memoryview:
        """The bytes of a slot, writable; nothing is copied."""
        begin = _slots_begin(self.slots) + index * _whole_pages(self.slot_bytes)
        return memoryview(self.data)[begin : begin + self.slot_bytes]

    def close(self) -> None:
        """Let go of the memory; the owner's segment disappears by name (readers keep what they have mapped)."""
        if self._owned:
            (FOLDER / self.name).unlink(missing_ok=True)
        with suppress(BufferError):  # somebody still holds a view: the mapping goes with the last of them
            self.data.close()
        self._let_go()


def segment_bytes(slots: int, slot_bytes: int) -> int:
    """Bytes of a whole segment."""
    return _slots_begin(slots) + slots * _whole_pages(slot_bytes)


def remove_leftovers() -> list[str]:
    """Remove segments of this user whose owner is gone; returns their names."""
    removed = []
    for path in FOLDER.glob(PREFIX + "*"):
        if not NAME.fullmatch(path.name):
            continue
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if os.fstat(descriptor).st_uid == os.getuid() and _try_lock(descriptor, OWNER_LOCK):
                path.unlink(missing_ok=True)
                removed.append(path.name)
        finally:
            os.close(descriptor)
    return removed


def _bytes_free() -> int:
    there = os.statvfs(FOLDER)
    return there.f_bavail * there.f_frsize


def _make_file() -> tuple[str, int]:
    """An empty file of a new name, with the owner's lock on it."""
    while True:
        name = PREFIX + secrets.token_hex(16)
        try:
            descriptor = os.open(
                FOLDER / name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise ConfigurationError(
                f"Shared memory cannot be made in {FOLDER} ({os.strerror(error.errno or 0)}); "
                "make it writable or take another transport."
            ) from error
        if _try_lock(descriptor, OWNER_LOCK) and os.fstat(descriptor).st_nlink:
            return name, descriptor
        os.close(descriptor)  # before it was locked, another process took it for a leftover


def _check(name: str, descriptor: int) -> None:
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) != 0o600:
        raise HandleError("foreign", f"The slot pool {name} is not this user's own (mode 0600).")
    header = os.pread(descriptor, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        raise HandleError("foreign", f"The slot pool {name} is too short to be one.")
    magic, version, slots, slot_bytes, _ = _HEADER.unpack(header)
    if magic != MAGIC or version != VERSION:
        raise HandleError("foreign", f"The slot pool {name} was not made by this version of the package.")
    if facts.st_size != segment_bytes(slots, slot_bytes):
        raise HandleError(
            "foreign", f"The slot pool {name} has {facts.st_size:,} bytes, which does not fit its header."
        )


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _slots_begin(slots: int) -> int:
    return PAGE * (1 + -(-slots * 64 // PAGE))


def _set_lock(descriptor: int, kind: int, byte: int) -> None:
    # locks of the open file, not of the process: two rings in one process do not share them
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, byte, 1, 0))


def _try_lock(descriptor: int, byte: int) -> bool:
    try:
        _set_lock(descriptor, fcntl.F_WRLCK, byte)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _is_locked(descriptor: int, byte: int) -> bool:
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    return bool(_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)
