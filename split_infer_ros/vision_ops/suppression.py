"""Which candidates of one class overlap no better one: all images and classes side by side, on the host.

Candidates are few by now, so what counts is the number of steps and what each costs at least: in numpy a fifth of what
it does in torch. Each step of an overlap is rounded by itself, as in torchvision's ``nms``: they agree to the last bit.
"""

from __future__ import annotations

import numpy as np
import torch
from torchvision.ops import nms

from split_infer_ros.vision_ops.arrays import Flags, Floats, Integers

PAIRWISE = 64  # candidates of one class in an image up to which all their pairs are compared
AT_ONCE = 2048  # such groups, so that memory lasts
ONE_BY_ONE = 200  # overlaps up to which that costs less than steps with all of them


def unsuppressed(boxes: Floats, images: Integers, labels: Integers, iou_threshold: float) -> Flags:
    """The candidates that are left: bool (M,).

    Where an image has few of a class, all their pairs are compared, those of all images and classes in one go; where it
    has many, torchvision's ``nms`` sees to that class.

    Args:
        boxes: floating (M, 4), of each image in the order in which they are preferred.
        images: int64 (M,), ascending.
        labels: int64 (M,), their classes.
        iou_threshold: of two of a class in an image that overlap by more, the later one is suppressed.
    """
    left = np.zeros(len(boxes), bool)
    if len(boxes) < 2:
        return ~left
    places = labels.argsort(kind="stable")
    several = images[-1] > images[0]
    if several:
        places = places[images[places].argsort(kind="stable")]
    new = np.ones(len(places), bool)
    new[1:] = _changes(labels[places])
    if several:
        new[1:] |= _changes(images[places])
    starts = new.nonzero()[0]
    sizes = np.append(starts[1:], len(places)) - starts
    corners = boxes[places]
    many = sizes > (PAIRWISE if len(sizes) > 1 else 1)
    for start, size in zip(starts[many].tolist(), sizes[many].tolist(), strict=True):
        order = torch.arange(size, 0, -1, dtype=torch.float32)  # as good as scores
        group = torch.from_numpy(corners[start : start + size])
        left[places[start + nms(group, order.to(group.dtype), iou_threshold).numpy()]] = True
    few = np.where(many, 0, sizes)
    for begin in range(0, 0 if many.all() else len(few), AT_ONCE):
        some = slice(begin, begin + AT_ONCE)
        left[places[_pairwise(corners, starts[some], few[some], iou_threshold)]] = True
    return left


def overlaps(one: Floats, other: Floats, iou_threshold: float) -> Flags:
    """Where boxes, (4, ...) each, overlap by more than that: intersection over union. Areas that are NaN never do."""
    with np.errstate(all="ignore"):
        zero = one.dtype.type(0)
        width = np.maximum(np.minimum(one[2], other[2]) - np.maximum(one[0], other[0]), zero)
        height = np.maximum(np.minimum(one[3], other[3]) - np.maximum(one[1], other[1]), zero)
        shared = width * height
        areas = [(right - left) * (bottom - top) for left, top, right, bottom in (one, other)]
        found: Flags = shared / (areas[0] + areas[1] - shared) > np.float64(iou_threshold)  # not rounded
    return found


def _changes(values: Integers) -> Flags:
    changes: Flags = values[1:] != values[:-1]
    return changes


def _ranges(starts: Integers, sizes: Integers) -> Integers:
    """From each start as many as its size, one after the other."""
    ends: Integers = sizes.cumsum()
    ranges: Integers = np.arange(sizes.sum(), dtype=np.int64) + (starts - (ends - sizes)).repeat(sizes)
    return ranges


def _pairwise(boxes: Floats, starts: Integers, sizes: Integers, iou_threshold: float) -> Integers:
    """Of groups of boxes (M, 4) those that are left. Groups of size 0 are passed over."""
    members = _ranges(starts, sizes)
    behind: Integers = (starts + sizes).repeat(sizes) - members - 1
    first = members.repeat(behind)
    second = _ranges(members + 1, behind)
    columns = boxes.T.copy()
    which = overlaps(columns.take(first, 1), columns.take(second, 1), iou_threshold)
    first, second = first[which], second[which]
    suppressed = np.zeros(len(boxes), bool)
    while len(first) > ONE_BY_ONE:
        # whoever nobody in question overlaps is left for certain, and then whom that one overlaps is not
        questioned = np.zeros(len(boxes), bool)
        questioned[second] = True
        suppressed[second[~questioned[first]]] = True
        open_ = ~(suppressed[first] | suppressed[second])
        first, second = first[open_], second[open_]
    for one, other in zip(first.tolist(), second.tolist(), strict=True):  # those of the first come first
        if not suppressed[one]:
            suppressed[other] = True
    left: Integers = members[~suppressed[members]]
    return left
