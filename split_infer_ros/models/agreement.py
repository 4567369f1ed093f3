"""How far two computations of the same frames agree in what they detect, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from split_infer_ros.models.average_precision import MatchedFrames, Truth
from split_infer_ros.models.detections import Detections, Limits

TOP_1, MAP = "top-1", "mAP"
LOW_SCORE = 0.05  # detections from this score on are compared, so that recall is complete
ERROR = 0.05  # of each bound
STEPS = 30  # of a bisection
NUM_RESAMPLES = 200  # of the frames, for the bounds of a detector


class Agreement:
    """Compares detections with those of a reference, frame by frame.

    For a detector, the agreement is the mAP (IoU 0.5 to 0.95), with the reference's detections as the truth. For a
    classifier, it is the share of frames with the same best class. Frames in which the reference finds no object say
    nothing, and do not count.

    Args:
        classifies: whether the model is a classifier.
        score_threshold: a detector's detections of the reference with at least this score are the truth.

    Attributes:
        measure: ``top-1`` or ``mAP``.
        limits: the limits with which both computations are decoded.
    """

    def __init__(self, *, classifies: bool, score_threshold: float = Limits().score_threshold) -> None:
        self.measure = TOP_1 if classifies else MAP
        self.limits = comparison_limits(self.measure)
        self._threshold = 0.0 if classifies else score_threshold
        self._found: list[Detections] = []
        self._truth: list[Truth] = []

    def __len__(self) -> int:
        return len(self._found)

    def objects(self, reference: Detections) -> Truth:
        """Returns what the reference detects with at least the score threshold."""
        return objects_of(reference, self._threshold)

    def add(self, reference: Detections, found: Detections) -> None:
        """Adds a frame, unless the reference finds no object in it.

        Args:
            reference, found: the detections of both computations, decoded with ``limits``.
        """
        truth = self.objects(reference)
        if len(truth[1]):
            self._truth.append(truth)
            self._found.append(found)

    @property
    def value(self) -> float | None:
        """The agreement, 0..1; None without frames."""
        if self.measure == TOP_1:
            right = right_classes(self._found, self._truth)
            return sum(right) / len(right) if right else None
        return MatchedFrames(self._found, self._truth).mean_average_precision()

    def bounds(self, error: float = ERROR) -> tuple[float, float] | None:
        """Returns one-sided bounds of the agreement, the lower and the upper one; None without frames.

        For a classifier, they are exact (Clopper and Pearson). For a detector, they come from a bootstrap: frames are
        drawn with replacement, always the same ones for the same number of frames. If all frames agree fully, both are
        1 for a detector.

        Args:
            error: how probable it is that the agreement lies beyond a bound, 0.005 to 0.5.
        """
        if not len(self):
            return None
        if self.measure == TOP_1:
            return _exact_bounds(sum(right_classes(self._found, self._truth)), len(self), error)
        score, random = MatchedFrames(self._found, self._truth), np.random.default_rng(0)
        draws = random.multinomial(len(self), np.full(len(self), 1 / len(self)), size=NUM_RESAMPLES)
        values = [value for counts in draws if (value := score.mean_average_precision(counts)) is not None]
        low, high = np.quantile(values, (error, 1 - error), method="nearest")
        return float(low), float(high)


def comparison_limits(measure: str) -> Limits:
    """Returns the limits with which detections are decoded for a comparison by ``TOP_1`` or ``MAP``.

    A detector gives all detections with a score of ``LOW_SCORE`` or more. A classifier gives its best class.
    """
    if measure == TOP_1:
        return Limits(score_threshold=0.0, max_detections=1)
    return Limits(score_threshold=LOW_SCORE)


def objects_of(detections: Detections, threshold: float) -> Truth:
    """Returns the detections with at least this score, as true objects."""
    kept = detections.scores >= threshold
    return detections.boxes[kept], detections.labels[kept]


def right_classes(found: Sequence[Detections], truth: Sequence[Truth]) -> list[bool]:
    """Returns for each image whether its best class is the true one."""
    return [
        bool(len(detections) and len(labels) and detections.labels[0] == labels[0])
        for detections, (_, labels) in zip(found, truth, strict=True)
    ]


def _exact_bounds(right: int, count: int, error: float) -> tuple[float, float]:
    """Returns the one-sided bounds of a share, after ``right`` of ``count`` were right."""
    return _lowest_share(right, count, error), 1 - _lowest_share(count - right, count, error)


def _lowest_share(hits: int, count: int, error: float) -> float:
    """Returns the share with which at least so many hits out of ``count`` have the probability ``error``."""
    low, high = 0.0, 1.0
    for _ in range(STEPS if hits else 0):
        share = (low + high) / 2
        ways = ((math.comb(count, number), number) for number in range(hits, count + 1))
        is_probable = math.fsum(way * share**number * (1 - share) ** (count - number) for way, number in ways) > error
        low, high = (low, share) if is_probable else (share, high)
    return low
