"""Random outputs of detectors and classifiers for one image, like those of trained and of untrained networks.

Each function returns a ``Draw``, or draws values itself. The names are those of the exports that the outputs imitate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
Draw = Callable[[np.random.Generator, bool], Values]
"""Draws the output of a network for one image, (1, ...). The flag says whether the network is trained."""


def sigmoid(values: Values) -> Values:
    return (1 / (1 + np.exp(-values))).astype(np.float32)


def softmax(values: Values) -> Values:
    powers = np.exp(values - values.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)


def logits_of(random: np.random.Generator, count: int, classes: int, *, trained: bool) -> Values:
    """Draws the logits of sigmoids, (1, count, classes).

    A trained network finds a few objects, and has low scores elsewhere. An untrained one has scores around 0.5.
    """
    values = random.normal(-6 if trained else 0, 1, (1, count, classes)).astype(np.float32)
    if trained:
        found = random.integers(0, count, max(3, count // 400))
        values[0, found, random.integers(0, classes, len(found))] = 2
    return values


def centres(random: np.random.Generator, count: int, size: int) -> Values:
    """Draws boxes (1, count, 4) in pixels: centres anywhere in the input, then sizes up to half of the input."""
    places, sides = random.uniform(0, size, (1, count, 2)), random.uniform(3, size / 2, (1, count, 2))
    return np.concatenate((places, sides), 2).astype(np.float32)


def corners(random: np.random.Generator, count: int, size: int) -> Values:
    boxes = centres(random, count, size)
    halves = boxes[..., 2:] / 2
    return np.concatenate((boxes[..., :2] - halves, boxes[..., :2] + halves), 2)


def yolov8(count: int, classes: int, size: int = 640, *, rows: bool = False) -> Draw:
    def draw(random: np.random.Generator, trained: bool) -> Values:
        scores = sigmoid(logits_of(random, count, classes, trained=trained))
        found = np.concatenate((centres(random, count, size), scores), 2)
        return found if rows else np.ascontiguousarray(found.transpose(0, 2, 1))

    return draw


def yolov5(count: int, classes: int, size: int = 640) -> Draw:
    def draw(random: np.random.Generator, trained: bool) -> Values:
        objectness = sigmoid(logits_of(random, count, 1, trained=trained))
        scores = sigmoid(random.normal(0, 2, (1, count, classes)))  # of boxes without an object, anything
        return np.concatenate((centres(random, count, size), objectness, scores), 2)

    return draw


def yolov6(count: int, classes: int, size: int = 640) -> Draw:
    def draw(random: np.random.Generator, trained: bool) -> Values:
        scores = sigmoid(logits_of(random, count, classes, trained=trained))
        return np.concatenate((centres(random, count, size), np.ones((1, count, 1), np.float32), scores), 2)

    return draw


def yolox(count: int, classes: int) -> Draw:
    """Draws the output of YOLOX as it is exported by default: boxes are distances and logarithms, in cells."""

    def draw(random: np.random.Generator, trained: bool) -> Values:
        boxes = random.normal(0.3, 1 if trained else 0.1, (1, count, 4)).astype(np.float32)
        objectness = sigmoid(logits_of(random, count, 1, trained=trained))
        return np.concatenate((boxes, objectness, sigmoid(random.normal(0, 2, (1, count, classes)))), 2)

    return draw


def selected(count: int, classes: int, size: float = 640, *, centred: bool = False) -> Draw:
    """Draws selected boxes with score and class, (1, count, 6), the best first."""

    def draw(random: np.random.Generator, trained: bool) -> Values:
        boxes = (centres if centred else corners)(random, count, 640) * np.float32(size / 640)
        scores = np.sort(sigmoid(random.normal(-4 if trained else 0, 1, (1, count, 1))), 1)[:, ::-1]
        return np.concatenate((boxes, scores, random.integers(0, classes, (1, count, 1))), 2).astype(np.float32)

    return draw


def unit_boxes(count: int) -> Draw:
    return lambda random, trained: centres(random, count, 640) / 640


def queries(count: int, classes: int) -> Draw:
    """Draws the logits of sigmoids, (1, count, classes)."""
    return lambda random, trained: logits_of(random, count, classes, trained=trained)


def exclusive(count: int, classes: int) -> Draw:
    """Draws the logits of a softmax, (1, count, classes + 1). The last class means that there is no object."""

    def draw(random: np.random.Generator, trained: bool) -> Values:
        values = random.normal(0, 1, (1, count, classes + 1)).astype(np.float32)
        if trained:
            values[..., -1] += 9
            values[0, :3, 1 % classes] += 12
        return values

    return draw


def unit_queries(count: int, classes: int) -> Draw:
    def draw(random: np.random.Generator, trained: bool) -> Values:
        scores = sigmoid(logits_of(random, count, classes, trained=trained))
        return np.concatenate((centres(random, count, 640) / 640, scores), 2)

    return draw


def nanodet(count: int, classes: int, bins: int = 8) -> Draw:
    def draw(random: np.random.Generator, trained: bool) -> Values:
        scores = sigmoid(logits_of(random, count, classes, trained=trained))
        spread = random.normal(0, 2 if trained else 0.3, (1, count, 4 * bins)).astype(np.float32)
        return np.concatenate((scores, spread), 2)

    return draw


def logits(classes: int, *, shape: Sequence[int] | None = None) -> Draw:
    return lambda random, trained: random.normal(0, 3 if trained else 0.1, shape or (1, classes)).astype(np.float32)


def probabilities(classes: int) -> Draw:
    return lambda random, trained: softmax(random.normal(0, 3 if trained else 0.1, (1, classes)))


def scores_of_selected(count: int) -> Draw:
    return lambda random, trained: np.sort(random.random((1, count), np.float32), 1)[:, ::-1].copy()


def labels_of_selected(count: int, classes: int, dtype: npt.DTypeLike = np.int64) -> Draw:
    return lambda random, trained: random.integers(0, classes, (1, count)).astype(dtype)


def corners_of_selected(count: int, size: float = 640) -> Draw:
    return lambda random, trained: corners(random, count, 640) * np.float32(size / 640)


def without_batch(draw: Draw) -> Draw:
    return lambda random, trained: draw(random, trained)[0]


def noise(*shape: int, mean: float = 0, std: float = 1) -> Draw:
    return lambda random, trained: random.normal(mean, std, shape).astype(np.float32)


def uniform(*shape: int, low: float = 0, high: float = 1) -> Draw:
    return lambda random, trained: random.uniform(low, high, shape).astype(np.float32)
