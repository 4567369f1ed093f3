"""Non-maximum suppression on the host, for all images and classes of a batch at once.

Candidates are visited from the best score down, so a later candidate never suppresses an earlier one. A detector wants
only a few boxes. The operator therefore takes the best candidates of all classes first. If an image then lacks boxes,
its remaining candidates are searched as well, without those that overlap a kept box. For 3,234 boxes with 90 classes, a
few hundred of the 291,060 candidates decide. As in paper 004, all results begin as invalid, which is -1 here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats, Integers, to_host
from split_infer_ros.vision_ops.candidates import BestCandidates, Scores, best_candidates, keep_best_per_class
from split_infer_ros.vision_ops.suppression import overlapping_kept, unsuppressed

CANDIDATES_PER_DETECTION = 4  # candidates in a pass, for each detection that is missing


class NmsLimits(NamedTuple):
    """What makes a box a candidate, and what suppresses it. The arguments of ``box_nms`` have the same names."""

    score_threshold: float
    iou_threshold: float
    max_per_class: int | None


def fill_with_best(
    found: Integers, *, boxes: Floats, scores: Scores, labels: Integers | None, limits: NmsLimits
) -> None:
    """Writes the indices of the kept candidates of each image into ``found``, until the image's row is full.

    Places for which there is no candidate keep -1. N images have n boxes with C scores each.

    Args:
        found: int64 (N, max_detections), filled with -1. It is changed in place.
        boxes: floating (N, n, 4).
        scores: floating (N, n, C). If they are on a GPU, only the scores that may decide are copied to the host.
        labels: int64 (N, n), or None.
        limits: as in ``box_nms``.
    """
    max_detections, classes, max_per_class = found.shape[1], scores.shape[2], limits.max_per_class
    count = CANDIDATES_PER_DETECTION * max_detections
    best = best_candidates(scores, count, limits.score_threshold)
    if not len(best.indices):
        return
    if max_per_class is not None:
        in_class = np.bincount(best.images * classes + best.indices % classes)
        if in_class.max() > max_per_class:
            scores, max_per_class = keep_best_per_class(to_host(scores), max_per_class), None
            best = best_candidates(scores, count, limits.score_threshold)
    images, indices = _suppress(best, boxes, scores, labels, iou_threshold=limits.iou_threshold)
    counts = np.bincount(images, minlength=len(found))
    rank = np.arange(len(images)) - (counts.cumsum() - counts)[images]
    fits = rank < max_detections
    found[images[fits], rank[fits]] = indices[fits]
    for image in np.flatnonzero(best.has_more & (counts < max_detections)):
        row = slice(image, image + 1)
        remaining = to_host(scores[row])
        remaining = remaining.copy() if max_per_class is None else keep_best_per_class(remaining, max_per_class)
        _fill_image(
            found[image],
            count=counts[image],
            boxes=boxes[row],
            scores=remaining,
            labels=None if labels is None else labels[row],
            limits=limits,
        )


def _fill_image(
    found: Integers, *, count: int, boxes: Floats, scores: Floats, labels: Integers | None, limits: NmsLimits
) -> None:
    """Searches the remaining candidates of one image and appends the kept ones to ``found``.

    Args:
        found: int64 (max_detections,).
        count: detections that ``found`` holds already.
        boxes: floating (1, n, 4).
        scores: floating (1, n, C). Candidates that were kept or suppressed are overwritten with -inf.
        labels: int64 (1, n), or None.
        limits: as in ``box_nms``.
    """
    image_labels = None if labels is None else labels[0]
    kept, has_more = found[:count], True
    while has_more and count < len(found):
        missing = len(found) - count
        suppressed = overlapping_kept(
            kept, boxes[0], classes=scores.shape[2], labels=image_labels, iou_threshold=limits.iou_threshold
        )
        scores[0][suppressed] = -np.inf
        best = best_candidates(scores, CANDIDATES_PER_DETECTION * missing, limits.score_threshold)
        _, indices = _suppress(best, boxes, scores, labels, iou_threshold=limits.iou_threshold)
        kept, has_more = indices[:missing], best.has_more[0]
        found[count : count + len(kept)] = kept
        count += len(kept)


def _suppress(
    candidates: BestCandidates, boxes: Floats, scores: Scores, labels: Integers | None, *, iou_threshold: float
) -> tuple[Integers, Integers]:
    """Returns image and index of the candidates that are not suppressed."""
    images, indices, _ = candidates
    classes = scores.shape[2]
    box_indices = indices // classes if classes > 1 else indices
    candidate_labels = indices % classes if labels is None else labels[images, box_indices]
    keep = unsuppressed(boxes[images, box_indices], images, candidate_labels, iou_threshold=iou_threshold)
    return images[keep], indices[keep]
