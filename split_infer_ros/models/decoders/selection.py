"""Selects detections among an image's candidates, by threshold, order and suppression."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats, Integers
from split_infer_ros.models.decoders.layout import Suppression
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.vision_ops.host_nms import NmsLimits, fill_with_best

CANDIDATES_PER_DETECTION = 4  # how many candidates are read first


class Scored(NamedTuple):
    """The m candidates of one image with scores above the threshold.

    Attributes:
        places: int64 (m,), the index of each candidate's box.
        scores: float32 (m,).
        labels: a function that takes indices of candidates and returns their classes, int64.
    """

    places: Integers
    scores: Floats
    labels: Callable[[Integers], Integers]


def select(
    scored: Scored, corners: Callable[[Integers], Floats], suppression: Suppression, limits: Limits
) -> Detections:
    """Returns an image's detections, the best first. Equal scores keep the order of the candidates.

    If there are many candidates, only the best ones are read at first. If these give all wanted detections, the others
    need not be read: a box suppresses only boxes of lower or equal score that come later.

    Args:
        scored: the candidates.
        corners: a function that takes ``places`` of k candidates and returns their boxes, float32 (k, 4), in pixels of
            the input.
        suppression: which boxes suppress each other.
        limits: decide which detections are kept.
    """
    if not len(scored.scores) or not limits.max_detections:
        return Detections.empty()
    if suppression is Suppression.NONE:
        best = np.argsort(-scored.scores, kind="stable")[: limits.max_detections]
        return Detections(corners(scored.places[best]), scored.scores[best], scored.labels(best))
    count = CANDIDATES_PER_DETECTION * limits.max_detections
    if count < len(scored.scores):
        least = np.partition(scored.scores, -count)[-count]
        first = np.flatnonzero(scored.scores >= least)
        detections = _suppressed(scored, first, corners, suppression, limits)
        if len(detections) == limits.max_detections:
            return detections
    return _suppressed(scored, np.arange(len(scored.scores)), corners, suppression, limits)


def _suppressed(
    scored: Scored, chosen: Integers, corners: Callable[[Integers], Floats], suppression: Suppression, limits: Limits
) -> Detections:
    """Returns the chosen candidates that no other one suppresses. A box that is not finite overlaps nothing."""
    boxes, scores, labels = corners(scored.places[chosen]), scored.scores[chosen], scored.labels(chosen)
    groups = labels if suppression is Suppression.PER_CLASS else np.zeros_like(labels)
    places: Integers = np.full((1, limits.max_detections), -1)
    fill_with_best(
        places,
        boxes=boxes[None],
        scores=scores[None, :, None],
        labels=groups[None],
        limits=NmsLimits(limits.score_threshold, limits.nms_threshold, None),
    )
    kept = places[places >= 0]
    return Detections(boxes[kept], scores[kept], labels[kept])


def logit(probability: float) -> float:
    """Returns the number whose sigmoid is a probability: minus infinity for 0 or less, infinity for 1 or more."""
    if probability <= 0 or probability >= 1:
        return -math.inf if probability <= 0 else math.inf
    return math.log(probability / (1 - probability))
