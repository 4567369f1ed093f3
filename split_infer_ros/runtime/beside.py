"""Finds the folders of a model. A downloaded model file may only name files that lie in these folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MAX_LINKS = 40  # the most links from a model's path to its file; Linux follows as many


def folders_of(path: Path) -> list[Path]:
    """Returns the folder of a file. If the file is a link, also returns the folder of each target, link by link.

    In the cache of Hugging Face, both a model and its weights are links into a folder of blobs.
    """
    current = path.absolute()
    folders = [current.parent]
    while current.is_symlink() and len(folders) <= MAX_LINKS:
        current = current.parent.resolve() / current.readlink()
        folders.append(current.parent)
    return folders


def lies_in(path: Path, folders: Sequence[Path]) -> bool:
    """Returns whether a path, with all links followed, leads into one of these folders or below it."""
    try:
        parents = path.resolve().parents
    except (OSError, ValueError, RuntimeError):  # a name with a zero byte, or links in a circle
        return False
    return any(folder.resolve() in parents for folder in folders)
