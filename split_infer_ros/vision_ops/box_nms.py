"""Non-maximum suppression of a batch of images and all their classes in one call (vision-specific operators, §3.1.1).

Of what is left only the best few are wanted, and what comes later in the order cannot undo what was kept before. So the
best candidates of all classes are taken first. Only images that have not got enough are looked at again, without what
overlaps what they have: where a detector gives 3,234 boxes a score for each of 90 classes, a few hundred of 291,060
candidates decide. As in the paper, results start as invalid.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops.candidates import best_candidates, first_of_each
from split_infer_ros.vision_ops.suppression import Flags, Floats, Integers, overlaps, unsuppressed

FIRST = 4  # candidates for each box that is wanted, at first
MORE = 4  # times as many each time after
INVALID = -1


def box_nms(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor | None = None,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    most_of_a_class: int | None = None,
) -> Tensor:
    """The best candidates of each image that overlap no better one of their class.

    Order is by descending score, of equal scores by ascending index, on every device. What is kept is what torchvision's
    ``nms`` keeps, class by class, to the last bit. A score that is NaN is no candidate. A box whose area is not a number
    (a corner is NaN, or two are infinite) overlaps nothing; one that is empty or inside out is compared as any other.

    Args:
        boxes: floating (N, n, 4), left, top, right, bottom, in any unit.
        scores: floating (N, n), or (N, n, C) where each box has a score for each class; with any strides, so that a
            slice can leave out the background.
        labels: int64 (N, n), the class of each box; None where ``scores`` has all classes, or there is but one.
        score_threshold: scores up to it are no candidates.
        iou_threshold: of two boxes of one class whose intersection over union is above it, the later one is dropped.
        max_detections: at most so many are kept, an image.
        most_of_a_class: so many of each class are candidates, its best; None for all. Not with ``labels``.

    Returns:
        int64 (N, max_detections), indices of the kept into ``scores[i].flatten()``, the rest filled with -1.

    Raises:
        ConfigurationError: shapes that do not fit, or a limit out of its range.
    """
    _check(boxes, scores, labels, iou_threshold, max_detections, most_of_a_class)
    found: Integers = np.full((len(scores), max_detections), INVALID)
    if found.size and scores.numel():
        offered = scores.detach() if scores.ndim == 3 else scores.detach().unsqueeze(2)
        _fill(found, boxes.detach().float(), offered, labels, score_threshold, iou_threshold, most_of_a_class)
    return torch.from_numpy(found).to(scores.device)


def _fill(
    found: Integers, boxes: Tensor, scores: Tensor, labels: Tensor | None, least: float, iou: float, most: int | None
) -> None:
    """``found``, for scores (N, n, C) of which none is 0."""
    wanted, (_, each, classes) = found.shape[1], scores.shape
    images, fill = np.arange(len(found)), np.zeros(len(found), np.int64)  # images that have not got enough
    count = FIRST * wanted
    if most is not None and most < min(count, each):
        scores = first_of_each(scores, most)
    while True:
        best = best_candidates(scores, count, least)
        indices = best.indices.cpu().numpy()
        anchors = best.indices // classes if classes > 1 else best.indices
        corners = boxes.gather(1, anchors.unsqueeze(2).expand(-1, -1, 4)).cpu().numpy()
        groups = indices % classes if labels is None else labels.gather(1, anchors).cpu().numpy()
        left = unsuppressed(corners, groups, best.valid.cpu().numpy(), iou)
        rank = left.cumsum(1) + (fill - 1)[:, None]
        left &= rank < wanted
        rows, columns = left.nonzero()
        found[images[rows], rank[rows, columns]] = indices[rows, columns]
        fill += left.sum(1)
        again = (best.more.cpu().numpy() & (fill < wanted)).nonzero()[0]
        if not len(again):
            return
        chosen = torch.from_numpy(again).to(scores.device)
        boxes, scores = boxes[chosen], scores[chosen]
        labels = None if labels is None else labels[chosen]
        if most is not None and count <= most < each:  # so far none was beyond it
            scores = first_of_each(scores, most)
        for row, image in enumerate(again):
            kept = indices[image][left[image]]
            struck = _struck(kept, boxes[row], classes, None if labels is None else labels[row], iou)
            scores[row].masked_fill_(torch.from_numpy(struck).to(scores.device), -math.inf)
        images, fill, count = images[again], fill[again], MORE * count


def _struck(kept: Integers, boxes: Tensor, classes: int, labels: Tensor | None, iou_threshold: float) -> Flags:
    """The candidates (n, C) of an image that those just kept are, or overlap."""
    corners = np.ascontiguousarray(boxes.cpu().numpy().T)
    hit = overlaps(corners[:, kept // classes, None], corners[:, None], iou_threshold)
    struck = np.zeros((classes, corners.shape[1]), bool)
    if labels is None:
        for its, label in zip(hit, kept % classes, strict=True):
            struck[label] |= its
    else:
        theirs = labels.cpu().numpy()
        struck[0] = (hit & (theirs == theirs[kept, None])).any(0)
    struck[kept % classes, kept // classes] = True
    return struck.T


def _check(
    boxes: Tensor, scores: Tensor, labels: Tensor | None, iou_threshold: float, wanted: int, most: int | None
) -> None:
    if scores.ndim not in (2, 3) or boxes.shape != (*scores.shape[:2], 4):
        raise ConfigurationError(
            f"boxes {tuple(boxes.shape)} and scores {tuple(scores.shape)} do not fit: boxes are (N, n, 4), and scores "
            f"(N, n), or (N, n, C) with one for each class."
        )
    if labels is not None and labels.shape != scores.shape:
        raise ConfigurationError(
            f"labels {tuple(labels.shape)} and scores {tuple(scores.shape)} do not fit: each of the (N, n) boxes has one "
            f"score and one label, or a score for each class and no label."
        )
    if not 0 <= iou_threshold <= 1:
        raise ConfigurationError(f"iou_threshold is {iou_threshold}; it is a part, 0 to 1.")
    if wanted < 0:
        raise ConfigurationError(f"max_detections is {wanted}; it is 0 or more.")
    if most is not None and (most < 1 or labels is not None):
        raise ConfigurationError(f"most_of_a_class is {most}; it is 1 or more, and for scores of all classes only.")
