"""Non-maximum suppression of a batch of images and all their classes in one call (vision-specific operators, §3.1.1).

Of what is left only the best few are wanted, and what comes later in the order cannot undo what was kept before. So the
best candidates of all classes are taken first, and more of them only for those images that have not got enough: where a
detector gives 3,234 boxes a score for each of 90 classes, a few hundred of 291,060 candidates decide. As in the paper,
results start as invalid and are set without a branch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchvision.ops import nms

FIRST = 4  # candidates for each box that is wanted, at first
MORE = 8  # times as many, for the images that have not got enough
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

    Order is by descending score, of equal scores by ascending index, on every device. A score that is NaN is never
    kept; a box with a corner that is NaN overlaps nothing. What is kept is what torchvision's ``nms`` keeps, class by
    class, to the last bit.

    Args:
        boxes: float32 (N, n, 4), left, top, right, bottom, in any unit.
        scores: floating (N, n), or (N, n, C) where each box has a score for each class.
        labels: int64 (N, n), the class of each box; None where ``scores`` has all classes.
        score_threshold: scores up to it are no candidates.
        iou_threshold: of two boxes of one class whose intersection over union is above it, the later one is dropped.
        max_detections: at most so many are kept, an image.
        most_of_a_class: so many of a class are candidates, its best; None for all.

    Returns:
        int64 (N, max_detections), indices of the kept into ``scores[i].flatten()``, the rest filled with -1.
    """
    flat = scores.flatten(1)
    images, total = flat.shape
    found = torch.full((images, max_detections), INVALID, dtype=torch.int64, device=flat.device)
    if not total or not max_detections:
        return found
    classes = scores.shape[2] if labels is None else 1
    short, count = list(range(images)), FIRST * max_detections
    while short:
        count = min(count, total)
        some = scores if len(short) == images else scores[short]
        orders, last = _best(some.unflatten(1, (-1, 1)) if labels is not None else some, count, score_threshold)
        still = []
        for image, order, more in zip(short, orders, last, strict=True):
            groups = order % classes if labels is None else labels[image][order]
            candidates = boxes[image][order // classes], flat[image][order], groups
            kept = order[_kept(*candidates, iou_threshold, most_of_a_class)[:max_detections]]
            if more and len(kept) < max_detections:
                still.append(image)
            else:
                found[image, : len(kept)] = kept
        short, count = still, count * MORE
    return found


def _best(scores: Tensor, count: int, threshold: float) -> tuple[list[Tensor], list[bool]]:
    """Of each image (N, n, C) the best ``count`` candidates or fewer, in order, and whether there are more.

    Of several equal scores at the end ``topk`` takes some, it is not defined which, so those are left for next time.
    """
    boxes, classes = scores.shape[1:]
    of_box = scores.amax(2)
    if bool(of_box.isnan().any()):  # for topk they are the best
        scores = scores.masked_fill(scores.isnan(), -math.inf)
        of_box = scores.amax(2)
    # the best candidates are among those of the boxes with the best one
    chosen, _ = of_box.topk(min(count, boxes), dim=1).indices.sort(dim=1)
    theirs = scores.gather(1, chosen.unsqueeze(2).expand(-1, -1, classes)).flatten(1)
    places, _ = theirs.topk(count, dim=1).indices.sort(dim=1)
    values, order = theirs.gather(1, places).sort(dim=1, descending=True, stable=True)
    places = places.gather(1, order)
    indices = chosen.gather(1, places // classes) * classes + places % classes
    more = count < boxes * classes
    valid = values > (values[:, -1:].clamp(min=threshold) if more else threshold)
    return [row[which] for row, which in zip(indices, valid, strict=True)], (
        (values[:, -1] > threshold).tolist() if more else [False] * len(values)
    )


def _kept(boxes: Tensor, scores: Tensor, labels: Tensor, iou_threshold: float, most: int | None) -> Tensor:
    """Of one image's candidates in order those that overlap no better one of their class: places, ascending."""
    labels, places = labels.sort(stable=True)
    _, counts = labels.unique_consecutive(return_counts=True)
    kept = []
    for group in places.split(counts.tolist()):
        its = group[:most]
        kept.append(its[nms(boxes[its], scores[its], iou_threshold)] if len(its) > 1 else its)
    return torch.cat(kept).sort().values if kept else places
