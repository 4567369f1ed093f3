"""The user's cache folder. Processes keep results there that took long to make, and later processes reuse them.

Each kind of result has a folder there. A result may be several files. Their names are the same up to the first dot.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from split_infer_ros.runtime.user_files import open_regular

RENEW_S = 86_400  # a thing is marked as used at most once a day

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_held: dict[Path, int] = {}  # the locked descriptor of each file that this process needs until it ends
_warned: set[Path] = set()  # files and folders that this process already warned about


def cache_folder() -> Path:
    """Returns the folder ``split_infer_ros`` in the user's cache folder (XDG_CACHE_HOME, else ~/.cache)."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = named if named.is_absolute() else Path.home() / ".cache"  # the XDG specification ignores relative paths
    return folder / "split_infer_ros"


def cache_path(kind: str, facts: str, suffix: str) -> Path:
    """Returns the path at which the cache keeps a result, or a file of a result.

    Args:
        kind: the name of the folder for results of this kind.
        facts: a text with all that decides the result's content. The file's name is made from this text.
        suffix: the end of the file's name, which begins with a dot.
    """
    return cache_folder() / kind / f"{digits_of(facts)}{suffix}"


def digits_of(facts: str) -> str:
    """Returns the first 32 hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


@contextmanager
def warn_if_not_kept(path: Path, otherwise: str, errors: type[Exception] = OSError) -> Iterator[None]:
    """Logs a warning if the block inside cannot write a file of the cache, for example because the disk is full.

    The error ends the block and is not raised again. There is one warning for each folder.

    Args:
        path: the file.
        otherwise: a clause that says what happens without the file.
        errors: the errors that count as a failure to write.
    """
    try:
        yield
    except errors as error:
        warn_once(path.parent, f"{path} cannot be kept, so {otherwise}: {error}.")


def warn_once(about: Path, sentence: str) -> None:
    """Logs a warning about a file or folder of the cache, unless this process already did."""
    if about not in _warned:
        _warned.add(about)
        _log.warning(sentence)


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
    """Returns whether any process holds a file of the cache; see ``hold``. If none does, locks the file.

    Other processes can hold a locked file only after ``descriptor`` is closed. A file system without locks cannot tell
    who holds a file. There, the result is always True.

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
