"""Non-maximum suppression of a batch of images and all their classes in one call (vision-specific operators, §3.1.1).

Of what is left only the best few are wanted. So candidates are taken best first, over all classes at once, in blocks,
until every image has enough: what comes later in the order cannot undo what was kept before, so to stop early loses
nothing. Within a block all images run side by side, and as in the paper results start as invalid and are set without
a branch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 256  # candidates of an image that are compared with each other at once
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
    flat = scores.flatten(1).float()
    images, total = flat.shape
    found = torch.full((images, max_detections), INVALID, dtype=torch.int64, device=flat.device)
    if not images or not total or not max_detections:
        return found
    flat = torch.where(flat > score_threshold, flat, -math.inf)  # NaN, too, which would count as the best
    candidates = _Candidates(boxes, labels, scores.shape[-1])
    count = min(BLOCK, total, most_of_a_class or total)
    order, valid = _best(flat, count)
    found[:] = _greedy(candidates, order, valid, iou_threshold, max_detections)
    short = (found[:, -1] == INVALID) & (flat.gather(1, order[:, -1:]).squeeze(1) > -math.inf)
    rows = short.nonzero().flatten()
    if len(rows) and count < total:
        candidates, flat = candidates.of(rows), flat[rows]
        if most_of_a_class is not None:
            flat = candidates.best_of_each_class(flat, most_of_a_class)
        able = int((flat > -math.inf).sum(1).max())
        order, valid = _best(flat, min(able + 1, total))
        found[rows] = _greedy(candidates, order, valid, iou_threshold, max_detections)
    return found


class _Candidates:
    """What belongs to an index of the flattened scores: a box for each, or for each ``classes`` of them."""

    def __init__(self, boxes: Tensor, labels: Tensor | None, classes: int) -> None:
        self._boxes = boxes
        self._labels = labels
        self._classes = classes

    def of(self, rows: Tensor) -> _Candidates:
        """Those of some images."""
        labels = None if self._labels is None else self._labels[rows]
        return _Candidates(self._boxes[rows], labels, self._classes)

    def at(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes (N, k, 4) and labels (N, k) of indices (N, k)."""
        if self._labels is None:
            places, labels = order // self._classes, order % self._classes
        else:
            places, labels = order, self._labels.gather(1, order)
        return self._boxes.float().gather(1, places.unsqueeze(2).expand(-1, -1, 4)), labels

    def best_of_each_class(self, flat: Tensor, most: int) -> Tensor:
        """The scores (N, n) without those that are not among the ``most`` of their class."""
        if self._labels is not None:
            raise NotImplementedError
        by_class = flat.unflatten(1, (-1, self._classes))
        if most < by_class.shape[1]:
            last = by_class.topk(most, dim=1).values[:, -1:]
            by_class = torch.where(by_class >= last, by_class, -math.inf)
        return by_class.flatten(1)


def _best(flat: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of each row the best, in order: indices (N, count), and which of them are candidates.

    Which of several equal scores ``topk`` takes at its end is not defined, so those do not count if there may be more.
    """
    indices, _ = flat.topk(count, dim=1).indices.sort(dim=1)
    scores, places = flat.gather(1, indices).sort(dim=1, descending=True, stable=True)
    least = scores[:, -1:] if count < flat.shape[1] else -math.inf
    return indices.gather(1, places), scores > least


def _greedy(candidates: _Candidates, order: Tensor, valid: Tensor, iou_threshold: float, most: int) -> Tensor:
    """Of candidates in order, (N, k) indices, the first ``most`` that overlap none before them that is kept."""
    images = len(order)
    found = torch.full((images, most), INVALID, dtype=torch.int64, device=order.device)
    count = torch.zeros((images, 1), dtype=torch.int64, device=order.device)
    for start in range(0, order.shape[1], BLOCK):
        block, alive = order[:, start : start + BLOCK], valid[:, start : start + BLOCK]
        boxes, labels = candidates.at(block)
        if start:
            before, theirs = candidates.at(found.clamp(min=0))
            beaten = _overlap(before, theirs, boxes, labels, iou_threshold) & (found != INVALID).unsqueeze(2)
            alive = alive & ~beaten.any(1)
        beats = _overlap(boxes, labels, boxes, labels, iou_threshold).triu(1)
        kept = alive
        while True:  # right up to the first change, and one place further with each turn: in the end, all
            again = alive & ~(beats & kept.unsqueeze(2)).any(1)
            if torch.equal(again, kept):
                break
            kept = again
        rank = count + kept.cumsum(1) - 1
        image, place = (kept & (rank < most)).nonzero(as_tuple=True)
        found[image, rank[image, place]] = block[image, place]
        count = (count + kept.sum(1, keepdim=True)).clamp(max=most)
        if bool((count == most).all()):
            break
    return found


def _overlap(boxes: Tensor, labels: Tensor, others: Tensor, their_labels: Tensor, iou_threshold: float) -> Tensor:
    """Which boxes (N, m, 4) overlap which others (N, k, 4) of their class: bool (N, m, k); sums as torchvision's."""
    left, top, right, bottom = (corner.unsqueeze(2) for corner in boxes.unbind(2))
    its_left, its_top, its_right, its_bottom = (corner.unsqueeze(1) for corner in others.unbind(2))
    width = (torch.minimum(right, its_right) - torch.maximum(left, its_left)).clamp_(min=0)
    height = (torch.minimum(bottom, its_bottom) - torch.maximum(top, its_top)).clamp_(min=0)
    both = width.mul_(height)
    area, its_area = (right - left) * (bottom - top), (its_right - its_left) * (its_bottom - its_top)
    iou = both / (area + its_area - both)
    return (iou > _largest_float32_up_to(iou_threshold)) & (labels.unsqueeze(2) == their_labels.unsqueeze(1))


def _largest_float32_up_to(value: float) -> float:
    """Above it are the same float32 numbers as above ``value``, which torch would round."""
    nearest = torch.tensor(value, dtype=torch.float32)
    if nearest.double() > value:
        nearest = torch.nextafter(nearest, torch.tensor(-math.inf))
    return float(nearest)
