"""Files that a user names: what a name may stand for, and reading that neither waits nor takes more than was agreed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_CHUNK_BYTES = 1 << 16


def user_path(name: str | Path) -> Path:
    """Returns the path that a user writes. ``~`` is a home folder; an unknown user's stays as it was written."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises for a user who does not exist


def is_regular(path: Path) -> bool:
    """Whether there is a file of this path that holds data: no folder, pipe or device. A name that is none has none."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Whether there is a folder of this path. Unlike ``Path.is_dir``, it raises for no name."""
    return stat.S_ISDIR(_mode(path))


def exists(path: Path) -> bool:
    """Whether there is anything of this path that can be found. Unlike ``Path.exists``, it raises for no name."""
    return _mode(path) != 0


def _mode(path: Path) -> int:
    """Returns the mode of what a path leads to; 0 if that is nothing that can be found."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):  # too long, links in a circle, a folder that may not be entered, a zero byte
        return 0


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Reads a whole file. A pipe or a device is refused, as reading it may never end.

    Args:
        path: of the file.
        max_bytes: at most so many are read, whatever size the file states.

    Raises:
        OSError: the file cannot be opened or read, or is no regular file.
        ValueError: it is larger, or its name has a zero byte.
    """
    with open(path, "rb", opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, max_bytes) + 1) or b""  # None from a file of the kernel's that has nothing yet
        while size < len(data) <= max_bytes and (more := file.read(_CHUNK_BYTES)):  # it states no size, or grows
            data += more
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return data


def open_regular(path: str, flags: int) -> int:
    """Opens a regular file, as ``opener`` of ``open``, and returns its descriptor.

    Raises:
        OSError: the file cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # else opening a pipe waits for a writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.ENOTSUP, "it is a folder, a pipe or a device, not a file with contents")
    return descriptor
