"""Drawn scenes as a source."""

from __future__ import annotations

from split_infer_ros.sources.picture import Picture
from split_infer_ros.sources.scenes import check_scene, draw_scene


class ShapesSource:
    """The scenes of one series, without end.

    Args:
        seed: of the series, from 0.
        width: of the pictures in pixels.
        height: of the pictures in pixels.

    Raises:
        SourceError: the seed is negative or the size too small.
    """

    def __init__(self, seed: int, width: int, height: int) -> None:
        check_scene(seed, width, height)
        self._arguments = seed, width, height
        self._index = 0
        self._closed = False

    def __iter__(self) -> ShapesSource:
        return self

    def __next__(self) -> Picture:
        if self._closed:
            raise StopIteration
        seed, width, height = self._arguments
        scene = draw_scene(seed, self._index, width, height)
        name = f"scene {self._index}"
        self._index += 1
        return Picture(scene.image, "rgb8", name, scene)

    def close(self) -> None:
        """Ends the series."""
        self._closed = True
