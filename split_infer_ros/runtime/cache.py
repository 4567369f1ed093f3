"""The user's cache folder. Processes keep results there that took long to make, and later processes reuse them.

Each kind of thing has a folder there. All files of one thing have the same name up to the first dot.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from split_infer_ros.runtime.user_files import open_regular

RENEW_S = 86_400  # a thing is marked as used at most once a day

_lock = threading.Lock()
_held: dict[Path, int] = {}  # the locked descriptor of each file that this process needs until it ends


def cache_folder() -> Path:
    """Returns the folder ``split_infer_ros`` in the user's cache folder (XDG_CACHE_HOME, else ~/.cache)."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = named if named.is_absolute() else Path.home() / ".cache"  # the XDG specification ignores relative paths
    return folder / "split_infer_ros"


def mark_used(path: Path) -> None:
    """Sets a file's time to now, because it is used. Pruning removes the files first that were unused the longest."""
    with suppress(OSError):  # a file without a new time is removed too early, and made again
        if time.time() - path.stat().st_mtime > RENEW_S:
            os.utime(path)


def hold(path: Path) -> None:
    """Marks a file of the cache as used, and keeps it there while this process runs.

    Use it for a file that a process opens by name more than once. A file that does not exist, or that does not lie in
    the cache folder, is left alone.
    """
    if not path.is_relative_to(cache_folder()):
        return
    mark_used(path)
    with _lock, suppress(OSError):  # no such file, or a file system without locks
        if path in _held and _is_current(_held[path], path):
            return
        descriptor = open_regular(str(path), os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits while another process removes the file
        replaced = _held.pop(path, None)
        if replaced is not None:
            os.close(replaced)
        _held[path] = descriptor


def is_held(descriptor: int) -> bool:
    """Returns whether any process holds a file. If none does, locks it, so that none can until it is closed.

    Args:
        descriptor: the open file.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks cannot tell, so the file counts as held
        return True
    return False


def _is_current(descriptor: int, path: Path) -> bool:
    """Returns False if the path now leads to another file."""
    return os.path.samestat(os.fstat(descriptor), path.stat())
