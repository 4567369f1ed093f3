"""Decides whether the outputs of a run on one image can mean what a layout says."""

from __future__ import annotations

import math

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.models.decoders.encodings import MAX_UNIT, is_unit
from split_infer_ros.models.decoders.facts import (
    OutputFacts,
    are_corners,
    are_probabilities,
    are_whole,
    rows_sum_to_one,
)
from split_infer_ros.models.decoders.layout import Activation, Background, BoxEncoding, BoxRange, OutputLayout
from split_infer_ros.models.decoders.parts import Arrays, images_of, numbers_of

MAX_OUTSIDE = 4.0  # in sizes of the input: how large a box in pixels may be, or how far outside
_MIN_SIZE = -1e-3  # of a box; below 0 only by rounding


def is_plausible(layout: OutputLayout, facts: OutputFacts) -> bool:
    """Whether the outputs of a run on one image can mean what a layout says. True if the model was not run."""
    if not layout.outputs or not layout.outputs <= facts.trial.keys():
        return True
    (image, *more) = images_of(layout, facts.trial) or [{}]
    if not image or more:
        return not facts.trial or not more
    return _scores_are(layout, image, facts) and (layout.boxes is None or _boxes_are(layout, image, facts))


def _scores_are(layout: OutputLayout, image: Arrays, facts: OutputFacts) -> bool:
    scores = numbers_of(layout.scores, layout, image)
    if not np.isfinite(scores).all():
        return False
    if layout.activation is Activation.NONE and not are_probabilities(scores):
        return False
    if layout.activation is Activation.SIGMOID and scores.size and scores.min() >= 0 and scores.max() > 0:
        return False  # they are probabilities already; after a sigmoid, all would be at least 0.5
    if (
        layout.background is not Background.NONE
        and layout.activation is Activation.NONE
        and not rows_sum_to_one(scores)
    ):
        return False
    objectness = None if layout.objectness is None else numbers_of(layout.objectness, layout, image)
    if layout.activation is Activation.NONE and not are_probabilities(objectness):
        return False
    if layout.labels is not None:
        labels = numbers_of(layout.labels, layout, image)[scores[:, 0] > 0] if len(scores) else scores
        if not are_whole(labels):
            return False
        if facts.classes is not None and labels.size and labels.max() >= facts.classes + layout.first_class + 0.5:
            return False
    return layout.counts is None or are_whole(numbers_of(layout.counts, layout, image))


def _boxes_are(layout: OutputLayout, image: Arrays, facts: OutputFacts) -> bool:
    assert layout.boxes is not None
    boxes = np.asarray(numbers_of(layout.boxes, layout, image), np.float64)
    if not np.isfinite(boxes).all():
        return False
    if not boxes.size:
        return True
    size = max(facts.height, facts.width)
    if layout.encoding in (BoxEncoding.CORNERS, BoxEncoding.CORNERS_YX) and not are_corners(boxes):
        return False
    if layout.encoding in (BoxEncoding.CENTRE_SIZE, BoxEncoding.CORNER_SIZE) and boxes[:, 2:].min() < _MIN_SIZE:
        return False
    if layout.encoding is BoxEncoding.CELLS:
        return float(boxes[:, 2:].max()) <= math.log(MAX_OUTSIDE * size / min(layout.grid.strides))
    if layout.encoding in (BoxEncoding.DISTRIBUTIONS, BoxEncoding.ANCHORS):
        return True
    if layout.encoding in (BoxEncoding.DISTANCES, BoxEncoding.SIZES):
        return float(boxes[:, :2].min()) > -size
    return _has_range(layout.range, boxes, size)


def _has_range(wanted: BoxRange, boxes: Floats, size: int) -> bool:
    largest = np.abs(boxes).max()
    if wanted is BoxRange.UNIT:
        return bool(largest <= MAX_UNIT)
    if wanted is BoxRange.PIXELS and largest > 0 and is_unit(boxes):
        return False
    return bool(largest <= MAX_OUTSIDE * max(size, 1) or wanted is BoxRange.AUTO)
