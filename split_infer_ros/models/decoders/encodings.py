"""What the numbers of boxes mean. For each encoding, a function converts them to corners in pixels of the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats, Integers
from split_infer_ros.models.decoders.layout import BoxEncoding, BoxRange, OutputLayout

MAX_UNIT = 2.0  # the largest number of boxes on the scale 0..1, which may lie partly outside; in pixels, one is larger
_MAX_LOGARITHM = 20.0  # of a size; with a larger one, the exponential is no real size and may be infinite


@dataclass(frozen=True)
class BoxGeometry:
    """What an encoding needs to know beside the numbers of the boxes.

    Attributes:
        height, width: the size of the input in pixels.
        range: the scale of the numbers.
        places: float32 (n, 2), the corners of all cells in cells, or None.
        sides: float32 (n, 1), the sides of all cells in pixels, or None.
        offset: where in its cell a box's centre is at distance 0, in cells.
        bins: the number of bins of a distribution.
        anchors: float32 (n, 4), centres and sizes, or None.
        variances: factors of the offsets from an anchor's centre, and of the logarithms of sizes.
    """

    height: int
    width: int
    range: BoxRange
    places: Floats | None = None
    sides: Floats | None = None
    offset: float = 0.0
    bins: int = 1
    anchors: Floats | None = None
    variances: tuple[float, float] = (0.1, 0.2)

    def scaled(self, corners: Floats) -> Floats:
        """Brings corners (m, 4) to pixels."""
        if self.range is BoxRange.PIXELS:
            return corners
        if self.range is BoxRange.AUTO and not is_unit(corners):
            return corners
        return corners * np.array((self.width, self.height) * 2, np.float32)

    def cells_of(self, places: Integers) -> tuple[Floats, Floats]:
        """Returns the corners (m, 2) and sides (m, 1) of the cells with these numbers."""
        assert self.places is not None
        assert self.sides is not None
        return self.places[places], self.sides[places]


def is_unit(numbers: Floats) -> bool:
    """Whether the numbers of boxes are on the scale 0..1. In pixels, at least one of them would be larger."""
    return bool(numbers.size) and bool(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0) <= MAX_UNIT)


def corners_of_centres(boxes: Floats) -> Floats:
    """Converts boxes (..., 4) from centre and size to left, top, right, bottom."""
    centres, halves = boxes[..., :2], boxes[..., 2:] / 2
    return np.concatenate((centres - halves, centres + halves), -1)


def _corners(numbers: Floats, _: Integers, geometry: BoxGeometry) -> Floats:
    return geometry.scaled(numbers)


def _corners_yx(numbers: Floats, _: Integers, geometry: BoxGeometry) -> Floats:
    return geometry.scaled(numbers[:, (1, 0, 3, 2)])


def _centre_size(numbers: Floats, _: Integers, geometry: BoxGeometry) -> Floats:
    return geometry.scaled(corners_of_centres(numbers))


def _corner_size(numbers: Floats, _: Integers, geometry: BoxGeometry) -> Floats:
    return geometry.scaled(np.concatenate((numbers[:, :2], numbers[:, :2] + numbers[:, 2:]), 1))


def _cells(numbers: Floats, places: Integers, geometry: BoxGeometry) -> Floats:
    corners, sides = geometry.cells_of(places)
    centres = (numbers[:, :2] + corners + geometry.offset) * sides
    return corners_of_centres(np.concatenate((centres, _exp(numbers[:, 2:]) * sides), 1))


def _sizes(numbers: Floats, places: Integers, geometry: BoxGeometry) -> Floats:
    corners, sides = geometry.cells_of(places)
    distances = numbers[:, 2:] if numbers.shape[1] == 4 else geometry.offset
    return corners_of_centres(np.concatenate(((corners + distances) * sides, numbers[:, :2] * sides), 1))


def _distances(numbers: Floats, places: Integers, geometry: BoxGeometry) -> Floats:
    corners, sides = geometry.cells_of(places)
    centres = corners + geometry.offset
    return np.concatenate((centres - numbers[:, :2], centres + numbers[:, 2:]), 1) * sides


def _distributions(numbers: Floats, places: Integers, geometry: BoxGeometry) -> Floats:
    """Generalized focal loss: a distance is the mean of whole numbers, weighted by a softmax."""
    weights = softmax(numbers.reshape(len(numbers), 4, geometry.bins), 2)
    return _distances(weights @ np.arange(geometry.bins, dtype=np.float32), places, geometry)


def _anchors(numbers: Floats, places: Integers, geometry: BoxGeometry) -> Floats:
    assert geometry.anchors is not None
    anchors, (of_centre, of_size) = geometry.anchors[places], geometry.variances
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
    BoxEncoding.CORNERS: _corners,
    BoxEncoding.CORNERS_YX: _corners_yx,
    BoxEncoding.CENTRE_SIZE: _centre_size,
    BoxEncoding.CORNER_SIZE: _corner_size,
    BoxEncoding.CELLS: _cells,
    BoxEncoding.SIZES: _sizes,
    BoxEncoding.DISTANCES: _distances,
    BoxEncoding.DISTRIBUTIONS: _distributions,
    BoxEncoding.ANCHORS: _anchors,
}
"""Each maps numbers float32 (m, k), the places of their boxes int64 (m,) and the geometry to corners (m, 4)."""


def numbers_of_box(layout: OutputLayout) -> int:
    """Returns how many numbers a box has in a layout."""
    if layout.encoding is BoxEncoding.DISTRIBUTIONS:
        return 4 * layout.grid.bins
    return 2 if layout.encoding is BoxEncoding.SIZES else 4
