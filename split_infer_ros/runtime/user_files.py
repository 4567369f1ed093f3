"""Handles files that a user names. Reading never waits for data, and never reads more than a limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_CHUNK_BYTES = 1 << 16


def user_path(name: str | Path) -> Path:
    """Returns the path for a name that a user wrote. ``~`` becomes a home folder, except that of an unknown user."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises for a user who does not exist


def is_regular(path: Path) -> bool:
    """Returns whether the path leads to a regular file, not to a folder, pipe or device. False for an invalid path."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Returns whether the path leads to a folder. Unlike ``Path.is_dir``, this raises no error for an invalid path."""
    return stat.S_ISDIR(_mode(path))


def exists(path: Path) -> bool:
    """Returns whether the path leads to anything. Unlike ``Path.exists``, this raises no error for an invalid path."""
    return _mode(path) != 0


def _mode(path: Path) -> int:
    """Returns the mode of the file or folder that a path leads to; 0 if nothing is found."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):  # too long, links in a circle, a folder that may not be entered, a zero byte
        return 0


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Reads a whole file. A pipe or a device is refused, because reading it may never end.

    Args:
        path: the file.
        max_bytes: the most bytes that the file may have. No more than one further chunk is read, whatever size the
            file states.

    Raises:
        OSError: the file cannot be opened or read, or is not a regular file.
        ValueError: the file is larger than ``max_bytes``, or its name has a zero byte.
    """
    with open(path, "rb", opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, max_bytes) + 1) or b""  # read() returns None for a kernel file without data yet
        while size < len(data) <= max_bytes and (more := file.read(_CHUNK_BYTES)):  # the file grows or states no size
            data += more
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return data


def open_regular(path: str, flags: int) -> int:
    """Opens a regular file and returns its descriptor. ``open`` accepts this function as its ``opener``.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # otherwise opening a pipe waits for a writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.ENOTSUP, "it is a folder, a pipe or a device, not a file with contents")
    return descriptor
