"""The images of a folder as a source."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np

from split_infer_ros.errors import SourceError
from split_infer_ros.runtime.user_files import exists, is_folder, is_regular
from split_infer_ros.sources.picture import Picture

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def image_files(folder: Path) -> list[Path]:
    """Returns the files of a folder whose names end like those of images, sorted by name. Subfolders are not entered.

    Raises:
        SourceError: the folder cannot be read.
    """
    try:
        return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    except OSError as error:
        raise SourceError(f"The folder {folder} cannot be read ({error}).") from error


class FolderSource:
    """Yields the images of a folder, sorted by name, as bgr8. Subfolders are not entered."""

    def __init__(self, path: Path, files: Sequence[Path], *, loop: bool, warn: Callable[[str], None] | None) -> None:
        self._path, self._files, self._warn = path, files, warn
        self._remaining = itertools.cycle(files) if loop else iter(files)
        self._failures = 0  # unreadable files in a row

    @classmethod
    def open(cls, path: Path, *, loop: bool, warn: Callable[[str], None] | None) -> FolderSource:
        """Lists the images of a folder.

        Args:
            path: the folder.
            loop: whether to begin again after the last image.
            warn: called with a sentence for each unreadable file, which is then skipped. If None, such a file raises
                SourceError when it is read.

        Raises:
            SourceError: the folder does not exist, cannot be read, or has no images. Reading raises it too: at an
                unreadable file without ``warn``, or if every file is unreadable.
        """
        if not is_folder(path):
            problem = "is a file" if exists(path) else "does not exist"
            raise SourceError(f"The image folder {path} {problem}; folder:PATH takes a folder of images.")
        files = image_files(path)
        if not files:
            raise SourceError(f"The folder {path} holds no images ({', '.join(sorted(SUFFIXES))}).")
        return cls(path, files, loop=loop, warn=warn)

    def __iter__(self) -> FolderSource:
        return self

    def __next__(self) -> Picture:
        for file in self._remaining:
            image = cv2.imread(str(file), cv2.IMREAD_COLOR) if is_regular(file) else None  # a pipe could block for ever
            if image is not None:
                self._failures = 0
                return Picture(np.asarray(image, np.uint8), encoding="bgr8", name=file.name)
            self._failures += 1
            sentence = f"{file} cannot be read as an image."
            if self._warn is None:
                raise SourceError(sentence)
            self._warn(sentence)
            if self._failures == len(self._files):
                raise SourceError(f"None of the {len(self._files)} images in {self._path} can be read.")
        raise StopIteration

    def close(self) -> None:
        """Ends the series of images."""
        self._remaining = iter(())
