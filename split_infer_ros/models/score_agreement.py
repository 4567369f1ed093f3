"""Measures how far apart the scores of two executions of one classifier are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.models.detection_agreement import MAX_SCORE_DIFFERENCE
from split_infer_ros.models.detections import Detections, Limits

MAX_CLASSES = 100_000  # more than any classifier has
MIN_SPREAD = 10 * MAX_SCORE_DIFFERENCE  # from an image's worst to its best score; with less, any class could be best

Outputs = TypeVar("Outputs")


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """How far apart the scores of two executions are.

    Attributes:
        scores: the largest difference between the two executions' scores of one class in one image.
        other_classes: the number of images for which the executions disagree on the best class, apart from ties.
        spread: the best score minus the worst score of an image, both of the expected outputs. The smallest such
            difference over all images.
    """

    ALLOWED: ClassVar[str] = f"{MAX_SCORE_DIFFERENCE:g} of a score"

    scores: float
    other_classes: int
    spread: float

    @property
    def is_enough(self) -> bool:
        """Whether the scores of each image differ enough from each other for a judgement: by ``MIN_SPREAD``."""
        return self.spread >= MIN_SPREAD

    @property
    def agrees(self) -> bool:
        """Whether both executions give the same scores, apart from rounding.

        The best classes of all images agree or are tied, and scores differ by ``MAX_SCORE_DIFFERENCE`` at most.
        """
        return not self.other_classes and self.scores <= MAX_SCORE_DIFFERENCE

    def __str__(self) -> str:
        text = f"scores by up to {self.scores:.1g}"
        return f"{text}, and the best class in {self.other_classes} images" if self.other_classes else text


def compare_scores(
    decode: Callable[[Outputs, Limits], Sequence[Detections]], found: Outputs, expected: Outputs
) -> ScoreDifference:
    """Compares two executions of one classifier on the same images by the scores of all classes.

    Args:
        decode: takes the outputs of a batch and limits; returns the scored classes of each image, the best first.
        found, expected: the outputs of the two executions.
    """
    every = Limits(score_threshold=0.0, max_detections=MAX_CLASSES)
    pairs = decode(found, every), decode(expected, every)
    labels = [image.labels for images in pairs for image in images]
    num_labels = max((int(each.max(initial=-1)) + 1 for each in labels), default=0)
    if not num_labels:
        return ScoreDifference(0.0, 0, 0.0)  # nothing has a score
    one, other = (_scores(images, num_labels) for images in pairs)
    rows = np.arange(len(one))
    best, expected_best = one.argmax(1), other.argmax(1)
    lead = np.maximum(one[rows, best] - one[rows, expected_best], other[rows, expected_best] - other[rows, best])
    return ScoreDifference(
        scores=float(np.abs(one - other).max()),
        other_classes=int((lead > MAX_SCORE_DIFFERENCE).sum()),
        spread=float(np.ptp(other, axis=1).min()),
    )


def _scores(images: Sequence[Detections], num_labels: int) -> Floats:
    """Returns the score of each class in each image, float64 (N, num_labels). A class without a score gets 0."""
    scores = np.zeros((len(images), num_labels))
    for row, image in zip(scores, images, strict=True):
        row[image.labels] = image.scores
    return scores
