"""Which candidates of one class overlap no better one: all images and classes side by side, on the host.

Candidates are few by now, so what counts is the number of steps and what each costs at least: a fifth of torch's in
numpy. Each step of an overlap is rounded to float32, as torchvision's ``nms`` does: they agree to the bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torchvision.ops import nms

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

PAIRWISE = 64  # candidates of one class in an image up to which all their pairs are compared


def unsuppressed(boxes: Floats, labels: Integers, valid: Flags, iou_threshold: float) -> Flags:
    """The candidates that are left: bool (N, K).

    Where an image has few of a class, all their pairs are compared, those of all images and classes in one go; where it
    has many, torchvision's ``nms`` sees to that class.

    Args:
        boxes: float32 (N, K, 4), in the order in which they are preferred.
        labels: int64 (N, K), their classes.
        valid: bool (N, K), which of them are candidates.
        iou_threshold: of two of a class that overlap by more, the later one is suppressed.
    """
    left = np.zeros(valid.size, bool)
    places, starts = _by_class(labels, valid)
    corners = boxes.reshape(-1, 4)[places]
    sizes = np.diff(starts, append=len(places))
    many = sizes > PAIRWISE
    for start, size in zip(starts[many].tolist(), sizes[many].tolist(), strict=True):
        order = torch.arange(size, 0, -1, dtype=torch.float32)  # as good as scores
        kept = nms(torch.from_numpy(corners[start : start + size]), order, iou_threshold)
        left[places[start + kept.numpy()]] = True
    alone = _pairwise(corners, starts, np.where(many, 0, sizes), iou_threshold)
    left[places[alone]] = True
    return left.reshape(valid.shape)


def overlaps(one: Floats, other: Floats, iou_threshold: float) -> Flags:
    """Where boxes, (4, ...) each, overlap by more than that: intersection over union. Areas that are NaN never do."""
    with np.errstate(all="ignore"):
        width = np.maximum(np.minimum(one[2], other[2]) - np.maximum(one[0], other[0]), np.float32(0))
        height = np.maximum(np.minimum(one[3], other[3]) - np.maximum(one[1], other[1]), np.float32(0))
        shared = width * height
        areas = [(right - left) * (bottom - top) for left, top, right, bottom in (one, other)]
        found: Flags = shared / (areas[0] + areas[1] - shared) > iou_threshold
    return found


def _by_class(labels: Integers, valid: Flags) -> tuple[Integers, Integers]:
    """Candidates as places in the flattened (N, K), by image and class and then in order; where each class starts."""
    order = labels.argsort(axis=1, kind="stable")
    order += np.arange(0, labels.size, labels.shape[1])[:, None] if labels.size else 0
    places = order.ravel()
    places = places[valid.ravel()[places]]
    theirs = labels.ravel()[places]
    images = places // max(labels.shape[1], 1)
    new = np.ones(len(places), bool)
    new[1:] = (theirs[1:] != theirs[:-1]) | (images[1:] != images[:-1])
    return places, new.nonzero()[0]


def _pairwise(boxes: Floats, starts: Integers, sizes: Integers, iou_threshold: float) -> Integers:
    """Of groups of boxes (M, 4) those that are left. Groups of size 0 are passed over."""
    members = np.arange(sizes.sum()) + (starts - (sizes.cumsum() - sizes)).repeat(sizes)
    behind = (starts + sizes).repeat(sizes) - members - 1
    first = members.repeat(behind)
    second = np.arange(len(first)) + (members + 1 - (behind.cumsum() - behind)).repeat(behind)
    which = overlaps(boxes[first].T, boxes[second].T, iou_threshold)
    first, second = first[which], second[which]
    suppressed = np.zeros(len(boxes), bool)
    while len(first):
        # whoever nobody in question suppresses is left for certain, and whom that one overlaps is not
        questioned = np.zeros(len(boxes), bool)
        questioned[second] = True
        suppressed[second[~questioned[first]]] = True
        open_ = ~(suppressed[first] | suppressed[second])
        first, second = first[open_], second[open_]
    left: Integers = members[~suppressed[members]]
    return left
