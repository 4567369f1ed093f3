"""Locks on single bytes of a file. A lock ends with the process that holds it, however the process ends.

These are OFD locks (``F_OFD_SETLK``). They belong to the open file, not to the process. So two parts of one process
that open the same file also exclude each other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_LOCK = struct.Struct("hhqqi")  # struct flock: type, whence, start, length, pid


def try_lock(descriptor: int, byte: int) -> bool:
    """Tries to lock a byte for this open file alone, without waiting. Returns whether it is locked now."""
    try:
        _set(descriptor, fcntl.F_WRLCK, byte)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def lock_shared(descriptor: int, byte: int) -> None:
    """Locks a byte so that other open files can share the lock. Until ``unlock``, none of them can lock it alone.

    Raises:
        OSError: another open file has locked the byte for itself alone.
    """
    _set(descriptor, fcntl.F_RDLCK, byte)


def unlock(descriptor: int, byte: int) -> None:
    """Ends this open file's lock on a byte."""
    _set(descriptor, fcntl.F_UNLCK, byte)


def is_locked(descriptor: int, byte: int) -> bool:
    """Returns whether another open file holds a lock on a byte, alone or shared."""
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    return bool(_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _set(descriptor: int, kind: int, byte: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
