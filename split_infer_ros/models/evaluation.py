"""The quality of detections against the true objects: precision, recall and F1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from split_infer_ros.buffers.host_arrays import Flags, Floats, Integers
from split_infer_ros.models.detections import Detections
from split_infer_ros.vision_ops.box_iou import box_iou


@dataclass(frozen=True, slots=True)
class Score:
    """How many detections were right and wrong over some images, and the ratios that follow.

    A ratio with a denominator of 0 is 0.

    Attributes:
        true_positives: the number of detections that found an object.
        false_positives: the number of detections that found none.
        false_negatives: the number of objects that no detection found.
    """

    true_positives: int
    false_positives: int
    false_negatives: int

    @property
    def precision(self) -> float:
        """The share of detections that are right."""
        return _ratio(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """The share of objects that were found."""
        return _ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return _ratio(2 * self.true_positives, 2 * self.true_positives + self.false_positives + self.false_negatives)


def find_hits(found: Detections, boxes: Floats, labels: Integers, iou: float) -> Flags:
    """Returns which detections of an image find an object, bool (m,) for m detections.

    The detection with the best score chooses first. It finds the object of its class that it overlaps most, among
    objects that no earlier detection has found.

    Args:
        found: the image's detections, in any order.
        boxes: the boxes of the n true objects, float32 (n, 4), left, top, right, bottom in the pixels of ``found``.
        labels: the classes of the true objects, int64 (n,).
        iou: the smallest intersection over union of a detection and its object, above 0 and up to 1.
    """
    hits = np.zeros(len(found), bool)
    if not len(found) or not len(labels):
        return hits
    overlap = box_iou(found.boxes, boxes)
    overlap[found.labels[:, None] != labels] = 0
    for index in np.argsort(-found.scores, kind="stable").tolist():
        best = int(overlap[index].argmax())
        if overlap[index, best] >= iou:
            hits[index] = True
            overlap[:, best] = 0
    return hits


@dataclass(slots=True)
class Matcher:
    """Counts right and wrong detections, image by image; see ``find_hits``.

    Attributes:
        iou: the smallest intersection over union of a detection and its object, above 0 and up to 1.
    """

    iou: float = 0.5
    _true_positives: int = field(default=0, init=False)
    _found: int = field(default=0, init=False)
    _objects: int = field(default=0, init=False)

    def add(self, found: Detections, boxes: Floats, labels: Integers) -> None:
        """Counts the detections and the objects of one image.

        Args:
            found: the image's detections.
            boxes, labels: the true objects, as for ``find_hits``.
        """
        self._found += len(found)
        self._objects += len(labels)
        self._true_positives += int(find_hits(found, boxes, labels, self.iou).sum())

    def score(self) -> Score:
        """Returns the counts over all images that were added so far."""
        return Score(
            true_positives=self._true_positives,
            false_positives=self._found - self._true_positives,
            false_negatives=self._objects - self._true_positives,
        )


def f1(found: Sequence[Detections], truth: Sequence[tuple[Floats, Integers]], iou: float = 0.5) -> Score:
    """Returns the counts over several images at once. The result's property ``f1`` is their F1 score.

    Args:
        found: the detections of each image.
        truth: the true objects of each image: boxes (n, 4) and labels (n,), as in ``Matcher.add``.
        iou: the smallest overlap of a detection with its object, as in ``Matcher``.

    Raises:
        ValueError: ``found`` and ``truth`` differ in their number of images.
    """
    matcher = Matcher(iou)
    for detections, (boxes, labels) in zip(found, truth, strict=True):
        matcher.add(detections, boxes, labels)
    return matcher.score()


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
