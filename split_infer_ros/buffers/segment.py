"""Memory that processes of one host share: a file in ``/dev/shm``, called a segment.

One process, the owner, makes the segment and removes it at its end. Other processes, the readers, find it by name. The
name is random. The file is created exclusively, with mode 0600, and never through a link. The owner holds a lock on
the file as long as the owner lives. A lock ends with its process, however the process ends. So anybody can distinguish
a segment in use from a leftover. This module does not import torch, so a reader starts in milliseconds.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
import stat
import struct
import weakref
from contextlib import suppress
from pathlib import Path

from split_infer_ros.buffers.file_locks import is_locked, lock_shared, try_lock, unlock
from split_infer_ros.errors import ConfigurationError, HandleError
from split_infer_ros.runtime.shortage import shortage

FOLDER = Path("/dev/shm")
PREFIX = "split_infer_"
NAME = re.compile(rf"{PREFIX}[0-9a-f]{{32}}")
MAGIC = b"SPLITINF"
VERSION = 1
_HEADER = struct.Struct("<8sIIQQ")  # magic, version, slots, bytes a slot, pool
PAGE = mmap.PAGESIZE
# Bytes of the file on which locks are held. The reader of slot n holds the lock on byte n + 1.
OWNER_LOCK = 0
READERS_LOCK = 2**40  # shared by all readers
HEAD_LOCK = READERS_LOCK + 1  # held by the one reader that takes published slots


class Segment:
    """Shared memory with pages of bookkeeping, followed by slots.

    Args:
        name: the name of the file in FOLDER.
        descriptor: the descriptor of the open file. The segment closes it.
        data: the mapped file.
        is_owner: True for the process that made the segment.

    Attributes:
        name: the name of the file in FOLDER.
        pool: the identity of the slot pool in this segment.
        slots: number of slots.
        slot_bytes: the size of a slot.
        data: the whole segment, including its bookkeeping.
    """

    def __init__(self, name: str, descriptor: int, data: mmap.mmap, is_owner: bool) -> None:
        self.name = name
        self.data = data
        _, _, self.slots, self.slot_bytes, self.pool = _HEADER.unpack_from(data)
        self._descriptor = descriptor
        self._is_owner = is_owner
        self._close_file = weakref.finalize(self, os.close, descriptor)  # called in close, or when this object goes

    @classmethod
    def create(cls, slots: int, slot_bytes: int, pool: int) -> Segment:
        """Makes a segment that this process owns.

        Args:
            slots: number of slots.
            slot_bytes: the size of a slot.
            pool: the identity of the slot pool.

        Raises:
            ConfigurationError: there is not enough memory. Nothing is left behind.
        """
        size = segment_bytes(slots, slot_bytes)
        name, descriptor = _make_file()
        try:
            os.posix_fallocate(descriptor, 0, size)  # otherwise a full folder would crash the process at first touch
            os.pwrite(descriptor, _HEADER.pack(MAGIC, VERSION, slots, slot_bytes, pool), 0)
            return cls(name=name, descriptor=descriptor, data=_map(descriptor), is_owner=True)
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
        """Opens the segment with a name, as a reader.

        Raises:
            HandleError: there is no such segment, another user owns it, or another version of this package or another
                program made it. The error's reason is ``foreign``.
        """
        if not NAME.fullmatch(name):
            raise HandleError("foreign", f"'{name}' is not the name of a slot pool in shared memory.")
        try:
            descriptor = os.open(FOLDER / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise HandleError("foreign", f"The slot pool {name} cannot be opened ({why}).") from error
        try:
            _check(name, descriptor)
            lock_shared(descriptor, READERS_LOCK)
            return cls(name=name, descriptor=descriptor, data=_map(descriptor), is_owner=False)
        except HandleError:
            os.close(descriptor)
            raise
        except OSError as error:
            os.close(descriptor)
            raise HandleError("foreign", f"The slot pool {name} cannot be mapped ({error.strerror}).") from error

    @property
    def owner_lives(self) -> bool:
        """True while the process that owns the segment lives."""
        return self._is_owner or is_locked(self._descriptor, OWNER_LOCK)

    @property
    def has_readers(self) -> bool:
        """True while another process, or another part of this process, has the segment attached."""
        return is_locked(self._descriptor, READERS_LOCK)

    @property
    def is_whole(self) -> bool:
        """False if somebody cut the file short. SIGBUS ends a process that touches the missing memory."""
        return os.fstat(self._descriptor).st_size >= len(self.data)

    def claim(self) -> bool:
        """Tries to become the one reader that takes published slots. Only readers call this.

        The claim ends with ``disclaim`` or with the process. A reader that has the claim may call this again.

        Returns:
            Whether this reader now takes published slots.
        """
        return try_lock(self._descriptor, HEAD_LOCK)

    def disclaim(self) -> None:
        """Ends the claim, so that another reader may take published slots."""
        unlock(self._descriptor, HEAD_LOCK)

    def mend(self) -> None:
        """Restores a file that was cut short. The missing part becomes zeros. Only the owner calls this."""
        if not self.is_whole:
            os.truncate(self._descriptor, len(self.data))
            _HEADER.pack_into(self.data, 0, MAGIC, VERSION, self.slots, self.slot_bytes, self.pool)

    def lock_slot(self, slot: int) -> bool:
        """Locks a slot until ``unlock_slot`` or the process's end. Returns False if another process has the lock."""
        return try_lock(self._descriptor, slot + 1)

    def unlock_slot(self, slot: int) -> None:
        """Ends this process's lock on a slot."""
        unlock(self._descriptor, slot + 1)

    def slot(self, index: int) -> memoryview:
        """Returns a writable view of a slot's bytes."""
        begin = _slots_begin(self.slots) + index * _whole_pages(self.slot_bytes)
        return memoryview(self.data)[begin : begin + self.slot_bytes]

    def close(self) -> None:
        """Unmaps the memory of this process, once its last view is collected.

        If this process is the owner, the name goes as well. Readers keep the memory that they have mapped.
        """
        if self._is_owner:
            (FOLDER / self.name).unlink(missing_ok=True)
        with suppress(BufferError):  # somebody holds a view; the mapping ends with the last view
            self.data.close()
        self._close_file()


def segment_bytes(slots: int, slot_bytes: int) -> int:
    """Returns the size of a segment in bytes, including its bookkeeping."""
    return _slots_begin(slots) + slots * _whole_pages(slot_bytes)


def remove_leftovers() -> list[str]:
    """Removes this user's segments that have lost the process that owned them. Returns the names of these segments."""
    removed = []
    for path in FOLDER.glob(PREFIX + "*"):
        if not NAME.fullmatch(path.name):
            continue
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if os.fstat(descriptor).st_uid == os.getuid() and try_lock(descriptor, OWNER_LOCK):
                path.unlink(missing_ok=True)
                removed.append(path.name)
        finally:
            os.close(descriptor)
    return removed


def _bytes_free() -> int:
    room = os.statvfs(FOLDER)
    return room.f_bavail * room.f_frsize


def _map(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size)


def _make_file() -> tuple[str, int]:
    """Makes an empty file with a new name and takes the owner's lock on it; returns the name and the descriptor."""
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
        if try_lock(descriptor, OWNER_LOCK) and os.fstat(descriptor).st_nlink:
            return name, descriptor
        os.close(descriptor)  # another process took the unlocked file for a leftover, and removed it


def _check(name: str, descriptor: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o600:
        raise HandleError("foreign", f"The slot pool {name} is not this user's own (mode 0600).")
    header = os.pread(descriptor, _HEADER.size, 0)
    if len(header) < _HEADER.size:
        raise HandleError("foreign", f"The slot pool {name} is too short to be one.")
    magic, version, slots, slot_bytes, _ = _HEADER.unpack(header)
    if magic != MAGIC or version != VERSION:
        raise HandleError("foreign", f"The slot pool {name} was not made by this version of the package.")
    if status.st_size != segment_bytes(slots, slot_bytes):
        raise HandleError(
            "foreign", f"The slot pool {name} has {status.st_size:,} bytes, which does not fit its header."
        )


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _slots_begin(slots: int) -> int:
    return PAGE * (1 + -(-slots * 64 // PAGE))
