"""How good detections are: precision, recall and F1 against known truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torchvision.ops import box_iou

from split_infer_ros.models.detections import Detections


@dataclass(frozen=True, slots=True)
class Score:
    """Counts over some images; the three ratios are 0 where nothing was found."""

    true_positives: int
    false_positives: int
    false_negatives: int

    @property
    def precision(self) -> float:
        """Share of the detections that are right."""
        return _ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """Share of the objects that were found."""
        return _ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return _ratio(2 * self.true_positives, 2 * self.true_positives + self.false_positives + self.false_negatives)


@dataclass(slots=True)
class Matcher:
    """Counts image by image.

    The best-scored detection chooses first: among the objects of its class that are still free, the one it overlaps
    most, if by at least ``iou``.

    Attributes:
        iou: least overlap of a detection with its object, over 0 and up to 1.
    """

    iou: float = 0.5
    _true_positives: int = field(default=0, init=False)
    _found: int = field(default=0, init=False)
    _objects: int = field(default=0, init=False)

    def add(self, found: Detections, boxes: Tensor, labels: Tensor) -> None:
        """Counts one image.

        Args:
            found: what was detected.
            boxes: the truth, float32 (n, 4), left, top, right, bottom in the same pixels.
            labels: int64 (n,).
        """
        self._found += len(found)
        self._objects += len(labels)
        if not len(found) or not len(labels):
            return
        overlap = box_iou(found.boxes, boxes) * (found.labels[:, None] == labels)
        for i in found.scores.argsort(descending=True, stable=True).tolist():
            best = int(overlap[i].argmax())
            if overlap[i, best] >= self.iou:
                self._true_positives += 1
                overlap[:, best] = 0

    def score(self) -> Score:
        """The counts so far."""
        right = self._true_positives
        return Score(right, self._found - right, self._objects - right)


def f1(found: Sequence[Detections], truth: Sequence[tuple[Tensor, Tensor]], iou: float = 0.5) -> Score:
    """Scores images at once.

    Args:
        found: the detections of each image.
        truth: boxes (n, 4) and labels (n,) of each image.
        iou: as for Matcher.

    Raises:
        ValueError: there are not as many images in both.
    """
    matcher = Matcher(iou)
    for detections, (boxes, labels) in zip(found, truth, strict=True):
        matcher.add(detections, boxes, labels)
    return matcher.score()


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
