"""Keeps the user's cache folder small: what was not used for long is removed when something new is written there."""

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
FRESH_S = 60.0  # a thing of several files may still get its last one
UNFINISHED_S = 86_400.0  # a file under a temporary name is not being written any more
UNFINISHED = ".part"  # the end of such a name; see ``write_whole``
# What a process makes again at need. Others stay: downloads, which need the network; models in int8, which need the
# user's images; libraries, which need a compiler; and what lies in the cache folder itself, as the measurements do.
REMADE = ("blobs", "inspected", "manifests", "onnx", "shapes", "weights")

_log = logging.getLogger(__name__)


class _Limit:
    """The most bytes that stay. All nodes of a process share it."""

    nbytes = DEFAULT_BYTES


@dataclass
class _Thing:
    """Files that belong together, or a folder of files under temporary names.

    Attributes:
        used: when any of them was used or written last.
    """

    is_unfinished: bool
    paths: list[Path] = field(default_factory=list)
    nbytes: int = 0
    used: float = 0.0


def limit_cache(nbytes: float) -> None:
    """Says how many bytes stay in the cache folder when this process writes something there."""
    _Limit.nbytes = nbytes


def write_cached(path: Path, data: bytes) -> None:
    """Writes a file of the cache, and then removes what is too much.

    Args:
        path: the file.
        data: its content.

    Raises:
        OSError: it cannot be written, for example because the disk is full. What was there is as it was.
    """
    write_whole(path, data)
    prune_cache()


def prune_cache() -> None:
    """Removes what nobody used for ``MAX_UNUSED_S``, then the longest unused until no more is left than allowed.

    What a process holds or may be writing stays. Nothing is raised. What cannot be removed stays as well.
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
    """Returns what lies in a folder; nothing if it is none."""
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
