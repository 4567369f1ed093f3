"""The images of a folder as a source."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from split_infer_ros.errors import SourceError
from split_infer_ros.sources.picture import Picture

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


class FolderSource:
    """The images of a folder, sorted by name, as bgr8; subfolders are not entered.

    Args:
        path: of the folder.
        loop: begin again after the last.
        warn: is given a sentence for each file that cannot be read, which is then passed over; None raises instead.

    Raises:
        SourceError: no such folder, or no images in it; while reading: a file (with ``warn``, every file) is
            unreadable.
    """

    def __init__(self, path: Path, loop: bool, warn: Callable[[str], None] | None) -> None:
        if not path.is_dir():
            kind = "is a file" if path.exists() else "does not exist"
            raise SourceError(f"The image folder {path} {kind}; folder:PATH takes a folder of images.")
        self._files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
        if not self._files:
            raise SourceError(f"The folder {path} holds no images ({', '.join(sorted(SUFFIXES))}).")
        self._path, self._warn = path, warn
        self._order = itertools.cycle(self._files) if loop else iter(self._files)
        self._failures = 0

    def __iter__(self) -> FolderSource:
        return self

    def __next__(self) -> Picture:
        for file in self._order:
            image = cv2.imread(str(file), cv2.IMREAD_COLOR)
            if image is not None:
                self._failures = 0
                return Picture(np.asarray(image, np.uint8), "bgr8", file.name)
            self._failures += 1
            sentence = f"{file} cannot be read as an image."
            if self._warn is None:
                raise SourceError(sentence)
            self._warn(sentence)
            if self._failures == len(self._files):
                raise SourceError(f"None of the {len(self._files)} images in {self._path} can be read.")
        raise StopIteration

    def close(self) -> None:
        """Ends the pass."""
        self._order = iter(())
