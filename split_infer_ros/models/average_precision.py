"""The mean average precision (mAP) of detections against the true objects, as COCO defines it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from split_infer_ros.buffers.host_arrays import Flags, Floats, Integers
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.evaluation import find_hits

IOUS = tuple(0.5 + 0.05 * step for step in range(10))
NUM_RECALLS = 101  # 0, 0.01, ... 1, at which precision is read

Truth = tuple[Floats, Integers]
"""The n objects of one image: boxes float32 (n, 4), left, top, right, bottom in pixels; labels int64 (n,)."""


class MatchedFrames:
    """The detections of several frames, matched with the true objects of these frames.

    Args:
        found: the detections of each frame. Detections with low scores should be among them. Otherwise the recall is
            incomplete, and the result too low.
        truth: the objects of each frame.
        ious: thresholds for the intersection over union (IoU). A detection finds an object of its class if their IoU is
            at least the threshold. The default is COCO's 0.5, 0.55, ... 0.95.

    Raises:
        ValueError: ``found`` and ``truth`` differ in their number of frames.
    """

    def __init__(self, found: Sequence[Detections], truth: Sequence[Truth], ious: Sequence[float] = IOUS) -> None:
        if len(found) != len(truth):
            raise ValueError(f"there are detections of {len(found)} images and the truth of {len(truth)}")
        self._num_frames = len(found)
        classes = sorted({label for _, labels in truth for label in labels.tolist()})
        hits = [[find_hits(each, *objects, iou) for each, objects in zip(found, truth, strict=True)] for iou in ious]
        self._classes = [_MatchedClass.of(label, found, truth, hits) for label in classes]

    def mean_average_precision(self, counts: Integers | None = None) -> float | None:
        """Returns the mean average precision (mAP), 0..1; None if the truth has no objects.

        The result is the mean of the average precision over all classes and all thresholds. Classes without an object
        in the truth are left out, and detections of these classes are ignored.

        Args:
            counts: int (frames,), how often each frame counts. None: once.
        """
        counts = np.ones(self._num_frames, np.int64) if counts is None else counts
        known = [each for each in self._classes if each.num_objects(counts)]
        return sum(each.average_precision(counts) for each in known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class _MatchedClass:
    """The detections of one class in all frames, the best score first.

    Attributes:
        frames: int (n,), the frame of each detection.
        hits: bool (thresholds, n), whether a detection finds an object at each threshold.
        objects: int (frames,), the number of true objects in each frame.
    """

    frames: Integers
    hits: Flags
    objects: Integers

    @classmethod
    def of(
        cls, label: int, found: Sequence[Detections], truth: Sequence[Truth], hits: Sequence[Sequence[Flags]]
    ) -> _MatchedClass:
        """Returns the detections of the class ``label``. ``hits`` has a list for each threshold."""
        chosen = [detections.labels == label for detections in found]
        scores = np.concatenate([each.scores[of_class] for each, of_class in zip(found, chosen, strict=True)])
        frames = np.repeat(np.arange(len(found)), [int(of_class.sum()) for of_class in chosen])
        flags = [np.concatenate([each[of] for each, of in zip(frame, chosen, strict=True)]) for frame in hits]
        order = np.argsort(-scores, kind="stable")
        objects = np.array([int((labels == label).sum()) for _, labels in truth])
        return cls(frames[order], np.array(flags)[:, order], objects)

    def num_objects(self, counts: Integers) -> int:
        """Returns how many objects the frames have, each frame counted so often."""
        return int((self.objects * counts).sum())

    def average_precision(self, counts: Integers) -> float:
        """Returns the mean of the average precision over all thresholds."""
        weights = counts[self.frames]
        total = weights.cumsum()
        if not len(total) or not total[-1]:
            return 0.0
        right = (self.hits * weights).cumsum(axis=1)
        recall = right / self.num_objects(counts)
        precision = right / np.maximum(1, total)
        best_behind = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]  # it never rises with recall
        recalls = np.linspace(0, 1, NUM_RECALLS) - 1e-9
        means = [
            np.append(best, 0.0)[np.searchsorted(each, recalls)].mean()
            for best, each in zip(best_behind, recall, strict=True)
        ]
        return float(np.mean(means))


def mean_average_precision(
    found: Sequence[Detections], truth: Sequence[Truth], ious: Sequence[float] = IOUS
) -> float | None:
    """Returns the mean average precision (mAP) of detections, 0..1; None if the truth has no objects.

    The arguments are those of ``MatchedFrames``.

    Raises:
        ValueError: ``found`` and ``truth`` differ in their number of images.
    """
    return MatchedFrames(found, truth, ious).mean_average_precision()
