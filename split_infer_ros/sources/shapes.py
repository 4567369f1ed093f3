"""Drawn scenes as a source."""

from __future__ import annotations

from split_infer_ros.sources.picture import Picture
from split_infer_ros.sources.scenes import check_scene, draw_scene


class ShapesSource:
    """Yields the scenes of one series, without end."""

    def __init__(self, seed: int, *, width: int, height: int) -> None:
        self._seed, self._width, self._height = seed, width, height
        self._index = 0
        self._is_closed = False

    @classmethod
    def open(cls, seed: int, *, width: int, height: int) -> ShapesSource:
        """Begins a series of scenes.

        Args:
            seed: the number of the series, from 0.
            width: the width of the pictures in pixels.
            height: the height of the pictures in pixels.

        Raises:
            SourceError: the seed is negative, or the size is too small.
        """
        check_scene(seed, width, height)
        return cls(seed, width=width, height=height)

    def __iter__(self) -> ShapesSource:
        return self

    def __next__(self) -> Picture:
        if self._is_closed:
            raise StopIteration
        scene = draw_scene(self._seed, self._index, width=self._width, height=self._height)
        name = f"scene {self._index}"
        self._index += 1
        return Picture(scene.image, encoding="rgb8", name=name, truth=scene)

    def close(self) -> None:
        """Ends the series."""
        self._is_closed = True
