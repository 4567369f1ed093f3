"""The mean average precision (mAP) of detections against the true objects, as COCO defines it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from split_infer_ros.buffers.host_arrays import Flags, Floats, Integers
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.evaluation import find_hits

IOUS = tuple(0.5 + 0.05 * step for step in range(10))
NUM_RECALLS = 101  # 0, 0.01, ... 1, at which precision is read

Truth = tuple[Floats, Integers]
"""The n objects of one image: boxes float32 (n, 4), left, top, right, bottom in pixels; labels int64 (n,)."""


def mean_average_precision(
    found: Sequence[Detections], truth: Sequence[Truth], ious: Sequence[float] = IOUS
) -> float | None:
    """Returns the mean average precision (mAP) of detections, 0..1; None if the truth has no objects.

    The result is the mean of the average precision over all classes and all ``ious``. Classes without an object in the
    truth are left out, and detections of these classes are ignored.

    Args:
        found: the detections of each image. Detections with low scores should be among them. Otherwise the recall is
            incomplete, and the result too low.
        truth: the objects of each image.
        ious: thresholds for the intersection over union (IoU). A detection finds an object of its class if their IoU is
            at least the threshold. The default is COCO's 0.5, 0.55, ... 0.95.

    Raises:
        ValueError: ``found`` and ``truth`` differ in their number of images.
    """
    if len(found) != len(truth):
        raise ValueError(f"there are detections of {len(found)} images and the truth of {len(truth)}")
    classes = sorted({label for _, labels in truth for label in labels.tolist()})
    hits = [[find_hits(each, *objects, iou) for each, objects in zip(found, truth, strict=True)] for iou in ious]
    means = [_average_precision(found, truth, of_iou, label) for label in classes for of_iou in hits]
    return sum(means) / len(means) if means else None


def _average_precision(found: Sequence[Detections], truth: Sequence[Truth], hits: Sequence[Flags], label: int) -> float:
    """Returns the average precision of one class. ``hits`` says which detections of each image find an object."""
    chosen = [detections.labels == label for detections in found]
    scores = np.concatenate([detections.scores[of_class] for detections, of_class in zip(found, chosen, strict=True)])
    flags = np.concatenate([flags[of_class] for flags, of_class in zip(hits, chosen, strict=True)])
    right = flags[np.argsort(-scores, kind="stable")].cumsum()
    if not len(right):
        return 0.0
    recall = right / sum(int((labels == label).sum()) for _, labels in truth)
    precision = right / np.arange(1, len(right) + 1)
    best_behind = np.maximum.accumulate(precision[::-1])[::-1]  # precision never rises with recall
    places = np.searchsorted(recall, np.linspace(0, 1, NUM_RECALLS) - 1e-9)
    return float(np.append(best_behind, 0.0)[places].mean())
