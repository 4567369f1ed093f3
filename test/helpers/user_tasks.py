"""Tasks of users for tests. Their process imports this module."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

HANG_S = 600.0
IMPOSSIBLE = {  # rows that are no objects, by what is wrong with them
    "box_not_finite": [np.nan, 0, 1, 1, 0.5, 0],
    "box_of_negative_size": [5, 5, 1, 1, 0.5, 0],
    "score_out_of_range": [0, 0, 1, 1, 2, 0],
    "unknown_label": [0, 0, 1, 1, 0.5, 7],
}


class Images:
    """Finds one box in an image, which tells the image's size. The first pixel of the image says what else happens."""

    labels = ("bright", "dark")

    def run(self, batch: Sequence[NDArray[np.uint8]]) -> list[Any]:
        return [self._rows(image) for image in batch]

    def _rows(self, image: NDArray[np.uint8]) -> list[list[float]]:
        height, width, _ = image.shape
        red, green, blue = image[0, 0].tolist()
        if red == 1:
            raise ValueError("no such colour")
        if red == 2:
            time.sleep(HANG_S)
        if red == 3:
            os._exit(9)
        if red == 4:
            return [list(IMPOSSIBLE.values())[green]]
        if red == 5:
            return [[[1.0, 2.0, 3.0]], None, 7.0][green]  # type: ignore[return-value]
        if red == 6:
            return [[0, 0, 1, 1, index / 5000, 0] for index in range(5000)]
        return [[0, 0, width, height, blue / 255, 0], [1, 1, 2, 2, 1.0, 1]]


class Points:
    """Finds the box around all points."""

    takes = "points"
    labels = ("cloud",)

    def run(self, batch: Sequence[NDArray[np.float32]]) -> list[Any]:
        return [[[*points.min(0), *points.max(0), 1.0, 0]] if len(points) else [] for points in batch]


class FewerResults(Images):
    """Returns nothing for a batch of images."""

    def run(self, batch: Sequence[NDArray[np.uint8]]) -> list[Any]:
        return []


class NoLabels:
    """Has no labels."""

    def run(self, batch: Sequence[Any]) -> list[Any]:
        return []


class Sounds(Images):
    """Takes something else than images and points."""

    takes = "sounds"


class Named(Images):
    """Has the labels that an environment variable lists."""

    labels = tuple(os.environ.get("TASK_LABELS", "bright dark").split())


class HangsAtFirst:
    """Never returns from its first run."""

    labels = ("thing",)

    def run(self, batch: Sequence[Any]) -> list[Any]:
        time.sleep(HANG_S)
        return []


def fails() -> Images:
    """Raises an error instead of making a task."""
    raise OSError("no model there")


def nothing() -> object:
    """Returns no task."""
    return object()
