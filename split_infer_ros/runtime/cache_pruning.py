"""Keeps the user's cache folder small. Writing a new file there also removes files that were not used for long."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from split_infer_ros.runtime.cache import cache_folder, is_held
from split_infer_ros.runtime.files import write_whole
from split_infer_ros.runtime.user_files import open_regular

MAX_UNUSED_S = 90 * 86_400
DEFAULT_BYTES = 2e9
FRESH_S = 60.0  # a younger thing stays, because its last files may still be written
UNFINISHED_S = 86_400.0  # a file that has a temporary name for longer is not being written any more
UNFINISHED = ".part"  # the end of a temporary name; see ``write_whole``
# Folders of things that a process can make again. All other things stay: downloads (they need the network), models in
# int8 (they need the user's images), libraries (they need a compiler), and files directly in the cache folder, such as
# the measurements.
REMADE = ("blobs", "inspected", "manifests", "onnx", "shapes", "weights")

_log = logging.getLogger(__name__)


class _Limit:
    """The most bytes that stay in the cache. All nodes of a process share this limit."""

    nbytes = DEFAULT_BYTES


@dataclass
class _Thing:
    """The files of one result, or a file or folder that is being written.

    Attributes:
        is_unfinished: whether this is a folder, or a file under a temporary name.
        paths: the files or the folder.
        nbytes: bytes of all files.
        used: when one of the files was last used or written.
    """

    is_unfinished: bool
    paths: list[Path] = field(default_factory=list)
    nbytes: int = 0
    used: float = 0.0


def limit_cache(nbytes: float) -> None:
    """Sets how many bytes may stay in the cache folder after this process writes something there."""
    _Limit.nbytes = nbytes


def write_cached(path: Path, data: bytes) -> None:
    """Writes a file of the cache, and then prunes the cache.

    Args:
        path: the file.
        data: its content.

    Raises:
        OSError: the file cannot be written, for example because the disk is full. The old file stays as it was.
    """
    write_whole(path, data)
    prune_cache()


def prune_cache() -> None:
    """Removes results that were unused for ``MAX_UNUSED_S``, then the longest unused until the rest fits the limit.

    Only the folders in ``REMADE`` are pruned. Results stay that a process holds or may be writing. A result that cannot
    be removed stays, too. Raises nothing.
    """
    now, things = time.time(), sorted(_things(cache_folder()), key=attrgetter("used"))
    total, removed = sum(thing.nbytes for thing in things), 0
    for thing in things:
        unused_s = now - thing.used
        is_unwanted = unused_s > MAX_UNUSED_S or total > _Limit.nbytes
        if is_unwanted and unused_s > (UNFINISHED_S if thing.is_unfinished else FRESH_S) and _remove(thing):
            total -= thing.nbytes
            removed += thing.nbytes
    if removed:
        _log.info("%.1f MB that were not used for long were removed from %s.", removed / 1e6, cache_folder())


def _things(folder: Path) -> Iterator[_Thing]:
    for kind in REMADE:
        by_name: dict[str, _Thing] = {}
        for path in _paths_in(folder / kind):
            is_unfinished = path.name.endswith(UNFINISHED) or path.is_dir()
            name = path.name if is_unfinished else path.name.partition(".")[0]
            thing = by_name.setdefault(name, _Thing(is_unfinished))
            thing.paths.append(path)
            for each in (path, *_paths_in(path)):
                _add(thing, each)
        yield from by_name.values()


def _paths_in(folder: Path) -> list[Path]:
    """Returns the paths in a folder; an empty list if the path is not a readable folder."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _add(thing: _Thing, path: Path) -> None:
    try:
        facts = path.lstat()
    except OSError:  # another process removed or renamed it meanwhile
        return
    thing.used = max(thing.used, facts.st_mtime)
    thing.nbytes += facts.st_size if stat.S_ISREG(facts.st_mode) else 0


def _remove(thing: _Thing) -> bool:
    """Removes a thing unless a process holds one of its files. Returns whether it is gone."""
    try:
        with ExitStack() as stack:
            for path in thing.paths:
                if path.is_dir():
                    continue
                descriptor = open_regular(str(path), os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                if is_held(descriptor):
                    return False
            for path in thing.paths:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
    except OSError as error:  # another process removed it, or it belongs to another user
        _log.debug("%s stays in the cache: %s.", thing.paths[0], error)
        return False
    return True
