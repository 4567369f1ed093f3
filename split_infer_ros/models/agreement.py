"""How far two computations of the same frames agree in what they detect, and how sure that is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from split_infer_ros.buffers.host_arrays import Integers
from split_infer_ros.models.average_precision import MatchedFrames, Truth
from split_infer_ros.models.detections import Detections, Limits

TOP_1, MAP = "top-1", "mAP"
LOW_SCORE = 0.05  # detections from this score on are compared, so that recall is complete
CONFIDENCE = 0.95  # of the lower bound
NUM_RESAMPLES = 200  # of the frames, for the lower bound


class Agreement:
    """Compares detections with those of a reference, frame by frame.

    For a detector, the agreement is the mAP (IoU 0.5 to 0.95), with the reference's detections as the truth. For a
    classifier, it is the share of frames with the same best class. Frames in which the reference finds no object say
    nothing, and do not count.

    Args:
        classifies: whether the model is a classifier.
        score_threshold: a detector's detections of the reference with at least this score are the truth.
        max_frames: only so many frames are kept, the latest ones; None: all.

    Attributes:
        measure: ``top-1`` or ``mAP``.
        limits: the limits with which both computations are decoded.
    """

    def __init__(
        self, *, classifies: bool, score_threshold: float = Limits().score_threshold, max_frames: int | None = None
    ) -> None:
        self.measure = TOP_1 if classifies else MAP
        self.limits = comparison_limits(self.measure)
        self._threshold = 0.0 if classifies else score_threshold
        self._found: deque[Detections] = deque(maxlen=max_frames)
        self._truth: deque[Truth] = deque(maxlen=max_frames)

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
        return self._scorer()(None)

    def lower_bound(self) -> float | None:
        """Returns the lower end of the agreement's one-sided confidence interval, by bootstrap; None without frames.

        Frames are drawn with replacement, always the same ones for the same number of frames.
        """
        if not len(self):
            return None
        score, random = self._scorer(), np.random.default_rng(0)
        draws = random.multinomial(len(self), np.full(len(self), 1 / len(self)), size=NUM_RESAMPLES)
        values = [value for counts in draws if (value := score(counts)) is not None]
        return float(np.quantile(values, 1 - CONFIDENCE, method="lower"))

    def _scorer(self) -> Callable[[Integers | None], float | None]:
        if self.measure == TOP_1:
            right = np.array(right_classes(self._found, self._truth), np.float64)
            return lambda counts: None if not len(right) else float(np.average(right, weights=counts))
        return MatchedFrames(self._found, self._truth).mean_average_precision


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
