"""What the numbers of boxes mean. For each encoding, a function converts them to corners in pixels of the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats, Integers
from split_infer_ros.models.decoders.layout import BoxEncoding, BoxRange, Grid, OutputLayout

MAX_UNIT = 2.0  # the largest number of boxes on the scale 0..1, which may lie partly outside; in pixels, one is larger
_MAX_LOGARITHM = 20.0  # of a size; with a larger one, the exponential is no real size and may be infinite


@dataclass(frozen=True)
class BoxGeometry:
    """What the function of an encoding needs besides the numbers of the boxes.

    Attributes:
        height, width: the size of the model's input in pixels.
        range: the scale of the numbers.
        grid: the layout's cells or anchors.
        places: float32 (n, 2), x and y of the top left corner of each of the n cells, in cells; None without cells.
        sides: float32 (n, 1), the side of each cell in pixels; None without cells.
        anchors: float32 (n, 4), centre x, centre y, width and height of each anchor, on the scale of ``range``; None
            without anchors.
    """

    height: int
    width: int
    range: BoxRange
    grid: Grid
    places: Floats | None = None
    sides: Floats | None = None
    anchors: Floats | None = None

    def scaled(self, corners: Floats) -> Floats:
        """Converts the corners (m, 4) of m boxes from the scale of ``range`` to pixels of the input."""
        if self.range is BoxRange.PIXELS:
            return corners
        if self.range is BoxRange.AUTO and not is_unit(corners):
            return corners
        return corners * np.array((self.width, self.height) * 2, np.float32)

    def cells_of(self, places: Integers) -> tuple[Floats, Floats]:
        """Returns the corners (m, 2), in cells, and the sides (m, 1), in pixels, of m cells.

        Args:
            places: int64 (m,), the indices of the cells.
        """
        assert self.places is not None
        assert self.sides is not None
        return self.places[places], self.sides[places]


def is_unit(numbers: Floats) -> bool:
    """Whether the numbers of boxes are on the scale 0..1. In pixels, at least one would be larger than ``MAX_UNIT``."""
    return bool(numbers.size) and bool(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0) <= MAX_UNIT)


def corners_of_centres(boxes: Floats) -> Floats:
    """Converts boxes (..., 4) from centre and size to left, top, right, bottom."""
    centres, halves = boxes[..., :2], boxes[..., 2:] / 2
    return np.concatenate((centres - halves, centres + halves), -1)


def _corner_size(numbers: Floats, _: Integers, geometry: BoxGeometry) -> Floats:
    return geometry.scaled(np.concatenate((numbers[:, :2], numbers[:, :2] + numbers[:, 2:]), 1))


def _cells(numbers: Floats, places: Integers, geometry: BoxGeometry) -> Floats:
    corners, sides = geometry.cells_of(places)
    centres = (numbers[:, :2] + corners + geometry.grid.offset) * sides
    return corners_of_centres(np.concatenate((centres, _exp(numbers[:, 2:]) * sides), 1))


def _sizes(numbers: Floats, places: Integers, geometry: BoxGeometry) -> Floats:
    corners, sides = geometry.cells_of(places)
    distances = numbers[:, 2:] if numbers.shape[1] == 4 else geometry.grid.offset
    return corners_of_centres(np.concatenate(((corners + distances) * sides, numbers[:, :2] * sides), 1))


def _distances(numbers: Floats, places: Integers, geometry: BoxGeometry) -> Floats:
    corners, sides = geometry.cells_of(places)
    centres = corners + geometry.grid.offset
    return np.concatenate((centres - numbers[:, :2], centres + numbers[:, 2:]), 1) * sides


def _distributions(numbers: Floats, places: Integers, geometry: BoxGeometry) -> Floats:
    """Reads a distance as the mean of whole numbers, weighted by a softmax (generalized focal loss)."""
    weights = softmax(numbers.reshape(len(numbers), 4, geometry.grid.bins), 2)
    return _distances(weights @ np.arange(geometry.grid.bins, dtype=np.float32), places, geometry)


def _anchors(numbers: Floats, places: Integers, geometry: BoxGeometry) -> Floats:
    assert geometry.anchors is not None
    anchors, (of_centre, of_size) = geometry.anchors[places], geometry.grid.variances
    centres = anchors[:, :2] + numbers[:, :2] * of_centre * anchors[:, 2:]
    sizes = anchors[:, 2:] * _exp(numbers[:, 2:] * of_size)
    return geometry.scaled(corners_of_centres(np.concatenate((centres, sizes), 1)))


def softmax(values: Floats, axis: int) -> Floats:
    """Returns the softmax of finite values along an axis."""
    powers: Floats = np.exp(values - values.max(axis, keepdims=True))
    powers /= powers.sum(axis, keepdims=True)
    return powers


def _exp(values: Floats) -> Floats:
    return np.exp(np.minimum(values, _MAX_LOGARITHM))


ENCODINGS: dict[BoxEncoding, Callable[[Floats, Integers, BoxGeometry], Floats]] = {
    BoxEncoding.CORNERS: lambda numbers, _, geometry: geometry.scaled(numbers),
    BoxEncoding.CORNERS_YX: lambda numbers, _, geometry: geometry.scaled(numbers[:, (1, 0, 3, 2)]),
    BoxEncoding.CENTRE_SIZE: lambda numbers, _, geometry: geometry.scaled(corners_of_centres(numbers)),
    BoxEncoding.CORNER_SIZE: _corner_size,
    BoxEncoding.CELLS: _cells,
    BoxEncoding.SIZES: _sizes,
    BoxEncoding.DISTANCES: _distances,
    BoxEncoding.DISTRIBUTIONS: _distributions,
    BoxEncoding.ANCHORS: _anchors,
}
"""The function of each encoding. It converts the numbers of m boxes to corners.

It takes three things: the numbers, float32 (m, k), k for each box; the indices of the boxes' cells or anchors, int64
(m,); and the geometry. It returns left, top, right, bottom in pixels of the input, (m, 4).
"""


def numbers_of_box(layout: OutputLayout) -> int:
    """Returns how many numbers a box has in a layout."""
    if layout.encoding is BoxEncoding.DISTRIBUTIONS:
        return 4 * layout.grid.bins
    return 2 if layout.encoding is BoxEncoding.SIZES else 4
