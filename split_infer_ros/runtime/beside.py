"""The folder of a model, and what lies in it: a file that was downloaded may name files there, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MAX_LINKS = 40  # from a model's path to its file; as many as Linux follows


def folders_of(path: Path) -> list[Path]:
    """Returns the folder of a file and, if it is a link, the folders of what it leads to, link by link.

    In the cache of Hugging Face, both a model and its weights are links into a folder of blobs.
    """
    current = path.absolute()
    folders = [current.parent]
    while current.is_symlink() and len(folders) <= MAX_LINKS:
        current = current.parent.resolve() / current.readlink()
        folders.append(current.parent)
    return folders


def lies_in(path: Path, folders: Sequence[Path]) -> bool:
    """Returns whether a path leads into one of these folders, or below it, once all links are followed."""
    try:
        parents = path.resolve().parents
    except (OSError, ValueError, RuntimeError):  # a name with a zero byte, or links in a circle
        return False
    return any(folder.resolve() in parents for folder in folders)
