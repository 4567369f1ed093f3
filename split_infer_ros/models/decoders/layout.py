"""The layout of a model's outputs: which numbers are boxes, scores and classes, and what they mean.

A decoder for an ONNX file is such a layout. The package recognises the layout of a family, or a user declares one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

UNREAD = "none"  # the name of the layout that reads nothing


class Arrangement(str, Enum):
    """How the n boxes of each of N images lie in an output."""

    ROWS = "rows"  # (N, n, numbers)
    COLUMNS = "columns"  # (N, numbers, n)
    MAPS = "maps"  # (N, numbers, height, width), one box for each cell


class BoxEncoding(str, Enum):
    """What the numbers of a box mean."""

    CORNERS = "corners"  # left, top, right, bottom
    CORNERS_YX = "corners_yx"  # top, left, bottom, right
    CENTRE_SIZE = "centre_size"  # centre x, centre y, width, height
    CORNER_SIZE = "corner_size"  # left, top, width, height
    CELLS = "cells"  # the centre's distance from its cell's corner, and the logarithm of its size, in cells
    DISTANCES = "distances"  # distances of the four sides from the centre of the cell, in cells
    DISTRIBUTIONS = "distributions"  # such distances, each as a softmax over whole numbers of cells
    ANCHORS = "anchors"  # offsets to the centre and logarithm of the size of an anchor
    SIZES = "sizes"  # width and height in cells, of a box whose centre is in its cell


CELL_ENCODINGS = (BoxEncoding.CELLS, BoxEncoding.DISTANCES, BoxEncoding.DISTRIBUTIONS, BoxEncoding.SIZES)


class BoxRange(str, Enum):
    """The scale of a box's numbers."""

    PIXELS = "pixels"  # of the input
    UNIT = "0..1"  # of the input's width and height
    AUTO = "auto"  # whichever of the two fits the boxes of a batch


class Activation(str, Enum):
    """The function that turns an output's number into a score."""

    NONE = "none"  # the number is a score already
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"  # over all classes, the background among them


class Background(str, Enum):
    """Which class means that there is no object."""

    NONE = "none"
    FIRST = "first"
    LAST = "last"


class Suppression(str, Enum):
    """Which overlapping boxes suppress each other: the one with the lower score is dropped."""

    NONE = "none"  # the network selected its boxes itself
    PER_CLASS = "per_class"
    ALL = "all"


class PerBox(str, Enum):
    """How many detections a box may give."""

    BEST = "best"  # one, of its best class
    ALL = "all"  # one for each class


@dataclass(frozen=True, slots=True)
class Part:
    """Says where some numbers of each box lie in a model's outputs, such as its scores.

    Attributes:
        outputs: the names of the outputs that hold the numbers. If there are several, such as one for each level, their
            boxes follow each other.
        first, last: which of a box's numbers belong to the part, as in the slice ``[first:last]``. If ``last`` is None,
            the slice goes to the end.
    """

    outputs: tuple[str, ...]
    first: int = 0
    last: int | None = None

    def __str__(self) -> str:
        names = "+".join(self.outputs)
        if self.first == 0 and self.last is None:
            return names
        return f"{names}[{self.first}:{'' if self.last is None else self.last}]"


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells or anchors to which a network's boxes belong.

    Attributes:
        strides: pixels of a cell's side in each level, in the order of the boxes.
        offset: the point of a cell from which the numbers of its box are measured. It lies so many cells to the right
            of the cell's corner, and as many below it. 0 is the corner, 0.5 the middle.
        bins: the number of weights for each distance. The distance is the weighted mean of 0, 1, ... ``bins`` - 1
            cells.
        anchors: the path of a file with n anchors (n, 4), centre and size; empty if boxes belong to cells.
        variances: two factors: of the offsets from an anchor's centre, and of the logarithms of sizes.
    """

    strides: tuple[int, ...] = (8, 16, 32)
    offset: float = 0.0
    bins: int = 8
    anchors: str = ""
    variances: tuple[float, float] = (0.1, 0.2)


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """How a model's outputs are read. A ``Part`` says where numbers lie; it is None if the outputs do not hold them.

    Attributes:
        name: the name of the family that has the layout, or ``declared``.
        boxes: the numbers of the boxes; None for a classifier.
        scores: one score for each box, or one for each class of a box.
        labels: the number of each box's class, if a box has one score.
        objectness: a factor of the scores.
        centres: the distances of the boxes' centres from the corners of their cells, for ``BoxEncoding.SIZES``.
        counts: how many of an image's boxes are valid. Without it, all are.
        rows: how the boxes lie in the outputs.
        encoding, range: what a box's numbers mean, and their scale.
        grid: the cells or anchors, for encodings that need them.
        activation: the function that turns numbers into scores.
        background: the class that means that there is no object. It is left out. If it is the first, the numbers of the
            other classes become smaller by 1.
        per_box: whether a box may give several detections.
        suppression: which boxes suppress each other.
        peaks: whether a cell gives a detection only if its score is the largest among its neighbours.
        first_class: the number of the first class in ``labels``.
        classes: how many classes there are, without the background; None if the outputs do not tell.
    """

    name: str
    boxes: Part | None
    scores: Part
    labels: Part | None = None
    objectness: Part | None = None
    centres: Part | None = None
    counts: Part | None = None
    rows: Arrangement = Arrangement.ROWS
    encoding: BoxEncoding = BoxEncoding.CORNERS
    range: BoxRange = BoxRange.PIXELS
    grid: Grid = Grid()
    activation: Activation = Activation.NONE
    background: Background = Background.NONE
    per_box: PerBox = PerBox.BEST
    suppression: Suppression = Suppression.PER_CLASS
    peaks: bool = False
    first_class: int = 0
    classes: int | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts of the layout that are not None."""
        every = (self.boxes, self.scores, self.labels, self.objectness, self.centres, self.counts)
        return tuple(part for part in every if part is not None)

    @property
    def outputs(self) -> frozenset[str]:
        """The names of the outputs that the layout reads. The model's other outputs are ignored."""
        return frozenset(name for part in self.parts for name in part.outputs)
