"""The decoder of every layout: it reads the outputs of a batch as the layout says, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from split_infer_ros.buffers.host_arrays import Floats, Integers, to_host
from split_infer_ros.models.decoders.encodings import ENCODINGS, BoxGeometry, softmax
from split_infer_ros.models.decoders.grids import cells, read_anchors
from split_infer_ros.models.decoders.layout import (
    CELL_ENCODINGS,
    Activation,
    Background,
    BoxEncoding,
    OutputLayout,
    PerBox,
    Suppression,
)
from split_infer_ros.models.decoders.parts import images_of, numbers_of
from split_infer_ros.models.decoders.selection import Scored, logit, select
from split_infer_ros.models.detections import Detections, Limits

NO_CLASS = -1  # the label of a box whose class is no whole number
MAX_ROUNDING = 0.01  # of a class that an output holds as a floating number


class LayoutDecoder:
    """Converts the outputs of a batch to detections in pixels of the model's input.

    Detections own their memory. Floats of 16 bits are read as float32.

    Args:
        layout: how the outputs are read.
        names: the names of the model's outputs, in order.
        height, width: the size of the model's input in pixels.

    Attributes:
        layout: how the outputs are read.

    Raises:
        ConfigurationError: the layout's file of anchors cannot be read.
        KeyError: the layout names an output that the model does not have.
    """

    def __init__(self, layout: OutputLayout, names: Sequence[str], height: int, width: int) -> None:
        self.layout = layout
        places = {name: place for place, name in enumerate(names)}
        self._places = {name: places[name] for name in layout.outputs}
        self._encode = ENCODINGS[layout.encoding]
        grid, encoding = layout.grid, layout.encoding
        corners, sides = cells(height, width, grid.strides) if encoding in CELL_ENCODINGS else (None, None)
        anchors = read_anchors(Path(grid.anchors)) if encoding is BoxEncoding.ANCHORS else None
        self._geometry = BoxGeometry(height, width, layout.range, grid, corners, sides, anchors)

    def __call__(self, outputs: Sequence[Any], limits: Limits) -> list[Detections]:
        """Returns the detections of each image.

        Args:
            outputs: the outputs of a batch, as arrays. Tensors on any device are possible too, because a user's decode
                function may pass them on.
            limits: decide which detections are kept.
        """
        if not self._places:
            return [Detections.empty() for _ in range(len(outputs[0]))]
        arrays = {name: to_host(outputs[place]) for name, place in self._places.items()}
        images = images_of(self.layout, arrays)
        if self.layout.boxes is None:
            return [self._whole_image(numbers_of(self.layout.scores, self.layout, image), limits) for image in images]
        return [self._image(image, limits) for image in images]

    def _image(self, image: dict[str, npt.NDArray[Any]], limits: Limits) -> Detections:
        """Returns the detections of one image. Its arrays have no batch in front."""
        layout = self.layout
        assert layout.boxes is not None
        numbers = numbers_of(layout.boxes, layout, image)
        scored = self._scored(image, len(numbers), limits)
        if layout.suppression is Suppression.NONE and layout.per_box is PerBox.ALL:
            limits = Limits(limits.score_threshold, limits.nms_threshold, min(limits.max_detections, len(numbers)))

        centres = None if layout.centres is None else numbers_of(layout.centres, layout, image)

        def corners(places: Integers) -> Floats:
            chosen = numbers[places] if centres is None else np.concatenate((numbers[places], centres[places]), 1)
            return self._encode(np.asarray(chosen, np.float32), places, self._geometry)

        return select(scored, corners, layout.suppression, limits)

    def _whole_image(self, values: Floats, limits: Limits) -> Detections:
        """Returns the best classes of an image, (1, classes), each as a detection that covers the model's input."""
        scores = np.asarray(self._probabilities(values)[0], np.float32)
        order = np.argsort(-scores, kind="stable")[: limits.max_detections]
        size = self._geometry.height, self._geometry.width
        return Detections.of_classes(scores[order], order, size, limits)

    def _scored(self, image: dict[str, npt.NDArray[Any]], count: int, limits: Limits) -> Scored:
        """Returns the candidates of an image with scores above the threshold."""
        layout, threshold = self.layout, limits.score_threshold
        if layout.counts is not None:
            count = min(count, max(0, _whole(numbers_of(layout.counts, layout, image))))
        scores = numbers_of(layout.scores, layout, image)[:count]
        places: Integers | None = None
        if layout.objectness is not None:
            objectness = numbers_of(layout.objectness, layout, image)[:count, 0]
            objectness = _sigmoid(objectness) if layout.activation is Activation.SIGMOID else objectness
            places = np.flatnonzero(objectness > threshold)
            scores = self._probabilities(scores[places]) * objectness[places, None]
        elif layout.activation is Activation.SIGMOID:
            threshold = logit(threshold)  # fewer numbers go through the sigmoid
        else:
            scores = self._probabilities(scores)
        if layout.peaks:
            scores = np.where(self._is_peak(image), scores, -np.inf)
        rows, columns, values = _above(scores, threshold, layout.per_box)
        if layout.activation is Activation.SIGMOID and layout.objectness is None:
            values = _sigmoid(values)
        places = rows if places is None else places[rows]
        return Scored(places, np.asarray(values, np.float32), self._labels(image, places, rows, columns, scores))

    def _labels(
        self,
        image: dict[str, npt.NDArray[Any]],
        places: Integers,
        rows: Integers,
        columns: Integers | None,
        scores: Floats,
    ) -> Any:
        """Returns the function that gives the classes of chosen candidates. Few candidates are chosen."""
        layout = self.layout
        if layout.labels is not None:
            numbers = numbers_of(layout.labels, layout, image)
            return lambda chosen: _classes(numbers[places[chosen], 0]) - layout.first_class
        if columns is not None:
            return lambda chosen: columns[chosen]
        return lambda chosen: np.asarray(scores[rows[chosen]].argmax(1), np.int64)

    def _probabilities(self, scores: Floats) -> Floats:
        """Returns scores (n, classes) after the layout's activation, without the background."""
        if self.layout.activation is Activation.SOFTMAX:
            scores = softmax(np.asarray(scores, np.float32), 1) if len(scores) else scores
        elif self.layout.activation is Activation.SIGMOID:
            scores = _sigmoid(scores)
        if self.layout.background is Background.FIRST:
            return scores[:, 1:]
        return scores[:, :-1] if self.layout.background is Background.LAST else scores

    def _is_peak(self, image: dict[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
        """Returns which cells of maps have the largest score of their class among their neighbours, (n, classes)."""
        levels = []
        for name in self.layout.scores.outputs:
            maps = np.asarray(image[name], np.float32)[self.layout.scores.first : self.layout.scores.last]
            largest = np.stack([cv2.dilate(each, np.ones((3, 3), np.uint8)) for each in maps])
            levels.append((maps == largest).reshape(len(maps), -1).T)
        return np.concatenate(levels)


def _above(scores: Floats, threshold: float, per_box: PerBox) -> tuple[Integers, Integers | None, Floats]:
    """Returns the rows, the columns and the values of the scores (n, classes) above a threshold.

    If only the best class of each row is wanted, columns are None. They are found later, for the few rows that matter.
    """
    if scores.shape[1] == 1:
        rows = np.flatnonzero(scores[:, 0] > threshold)
        return rows, np.zeros(len(rows), np.int64), scores[rows, 0]
    if per_box is PerBox.ALL:
        rows, columns = np.nonzero(scores > threshold)
        return rows, columns, scores[rows, columns]
    best = scores.max(1) if len(scores) else np.zeros(0, np.float32)
    rows = np.flatnonzero(best > threshold)
    return rows, None, best[rows]


def _classes(numbers: npt.NDArray[Any]) -> Integers:
    """Returns numbers of classes as int64. A number that is not whole becomes ``NO_CLASS``."""
    if numbers.dtype.kind in "iu":
        return numbers.astype(np.int64)
    with np.errstate(invalid="ignore"):
        whole = np.rint(numbers)
        is_whole = (np.abs(numbers - whole) <= MAX_ROUNDING) & (np.abs(whole) < 2**31)
    return np.where(is_whole, whole, NO_CLASS).astype(np.int64)


def _whole(counts: npt.NDArray[Any]) -> int:
    number = float(counts.reshape(-1)[0])
    return round(number) if np.isfinite(number) else 0


def _sigmoid(values: Floats) -> Floats:
    with np.errstate(over="ignore"):  # the exponential of a large number is infinite, and the score then 0
        return 1 / (1 + np.exp(-np.asarray(values, np.float32)))
