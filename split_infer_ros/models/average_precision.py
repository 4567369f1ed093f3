"""The mean average precision (mAP) of detections against the true objects, as COCO defines it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from split_infer_ros.buffers.host_arrays import Flags, Floats, Integers
from split_infer_ros.models.detections import Detections
from split_infer_ros.vision_ops.box_iou import box_iou

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
    means = [_average_precision(found, truth, label, iou) for label in classes for iou in ious]
    return sum(means) / len(means) if means else None


def _average_precision(found: Sequence[Detections], truth: Sequence[Truth], label: int, iou: float) -> float:
    """Returns the average precision of one class at one threshold of the IoU."""
    scores, hits, num_objects = [np.zeros(0, np.float32)], [np.zeros(0, bool)], 0
    for detections, (boxes, labels) in zip(found, truth, strict=True):
        chosen = detections.labels == label
        objects = boxes[labels == label]
        order = np.argsort(-detections.scores[chosen], kind="stable")
        num_objects += len(objects)
        scores.append(detections.scores[chosen][order])
        hits.append(_hits(detections.boxes[chosen][order], objects, iou))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    right = np.concatenate(hits)[order].cumsum()
    if not len(right):
        return 0.0
    recall = right / num_objects
    precision = right / np.arange(1, len(right) + 1)
    best_behind = np.maximum.accumulate(precision[::-1])[::-1]  # precision never rises with recall
    places = np.searchsorted(recall, np.linspace(0, 1, NUM_RECALLS) - 1e-9)
    return float(np.append(best_behind, 0.0)[places].mean())


def _hits(boxes: Floats, objects: Floats, iou: float) -> Flags:
    """Returns which boxes of an image find an object that no better box has found. The best box comes first."""
    hits = np.zeros(len(boxes), bool)
    if not len(boxes) or not len(objects):
        return hits
    overlap = box_iou(boxes, objects)
    for index in range(len(boxes)):
        best = int(overlap[index].argmax())
        if overlap[index, best] >= iou:
            hits[index] = True
            overlap[:, best] = -1
    return hits
