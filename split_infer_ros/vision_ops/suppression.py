"""Finds the candidates that overlap a better one of their class, on the host, for all images and classes at once.

Few candidates are left at this point, so the fixed cost of each step counts most. A step in numpy costs a fifth of one
in torch. For each class, the result equals that of torchvision's ``nms``.
"""

from __future__ import annotations

import numpy as np

from split_infer_ros.buffers.host_arrays import Flags, Floats, Integers
from split_infer_ros.vision_ops.box_iou import overlaps

MAX_PAIRWISE = 64  # up to this many candidates of one class in an image, all pairs are compared
MAX_GROUPS_AT_ONCE = 2048  # limits the memory for pairs; a group is the candidates of one class in an image
MAX_SEQUENTIAL = 200  # up to this many overlaps, a loop costs less than steps over whole arrays
MAX_PAIRS_AT_ONCE = 1 << 14  # pairs of boxes in a step, so that its arrays fit into a core's cache
BLOCK = 64  # candidates of a large group that are compared at once; each is a bit of an integer


def unsuppressed(boxes: Floats, images: Integers, labels: Integers, *, iou_threshold: float) -> Flags:
    """Returns which of M candidates are kept: bool (M,).

    A group is the candidates of one class in one image. The pairs of all small groups are compared in one go. Each
    large group is compared block by block.

    Args:
        boxes: floating (M, 4), best first within each image.
        images: int64 (M,), the image of each candidate, ascending.
        labels: int64 (M,), the classes of the boxes.
        iou_threshold: of two boxes of a group, the later is suppressed if their intersection over union lies above
            this.
    """
    keep = np.zeros(len(boxes), bool)
    if len(boxes) < 2:
        return ~keep
    order = labels.argsort(kind="stable")
    has_several_images = images[-1] > images[0]
    if has_several_images:
        order = order[images[order].argsort(kind="stable")]
    is_start = np.ones(len(order), bool)
    is_start[1:] = _changes(labels[order])
    if has_several_images:
        is_start[1:] |= _changes(images[order])
    starts = is_start.nonzero()[0]
    sizes = np.append(starts[1:], len(order)) - starts
    grouped = boxes[order]
    is_large = sizes > (MAX_PAIRWISE if len(sizes) > 1 else 1)
    for start, size in zip(starts[is_large].tolist(), sizes[is_large].tolist(), strict=True):
        keep[order[start + _unsuppressed_blockwise(grouped[start : start + size], iou_threshold)]] = True
    small_sizes = np.where(is_large, 0, sizes)
    for begin in range(0, 0 if is_large.all() else len(small_sizes), MAX_GROUPS_AT_ONCE):
        chunk = slice(begin, begin + MAX_GROUPS_AT_ONCE)
        keep[order[_unsuppressed_pairwise(grouped, starts[chunk], small_sizes[chunk], iou_threshold)]] = True
    return keep


def overlapping_kept(
    kept: Integers, boxes: Floats, *, classes: int, labels: Integers | None, iou_threshold: float
) -> Flags:
    """Returns which candidates of an image are kept already, or overlap a kept one of their class.

    The image has n boxes with C scores each.

    Args:
        kept: int64 (k,), the k kept candidates, as indices into the image's flattened scores (n, C).
        boxes: floating (n, 4).
        classes: C.
        labels: int64 (n,), the classes of the boxes; None if each box has a score for each class.
        iou_threshold: boxes overlap if their intersection over union lies above this.

    Returns:
        bool (n, C).
    """
    corners = np.ascontiguousarray(boxes.T)
    overlapping = np.zeros((classes, corners.shape[1]), bool)
    step = max(1, MAX_PAIRS_AT_ONCE // corners.shape[1])
    for begin in range(0, len(kept), step):
        chunk = kept[begin : begin + step]
        overlap = overlaps(corners[:, chunk // classes, None], corners[:, None], iou_threshold)
        if labels is None:
            for of_one, label in zip(overlap, chunk % classes, strict=True):
                overlapping[label] |= of_one
        else:
            overlapping[0] |= (overlap & (labels == labels[chunk, None])).any(0)
    overlapping[kept % classes, kept // classes] = True
    flags: Flags = overlapping.T
    return flags


def _changes(values: Integers) -> Flags:
    changes: Flags = values[1:] != values[:-1]
    return changes


def _ranges(starts: Integers, sizes: Integers) -> Integers:
    """Concatenates the ranges that begin at ``starts`` and have ``sizes`` elements."""
    ends: Integers = sizes.cumsum()
    ranges: Integers = np.arange(sizes.sum(), dtype=np.int64) + (starts - (ends - sizes)).repeat(sizes)
    return ranges


def _unsuppressed_pairwise(boxes: Floats, starts: Integers, sizes: Integers, iou_threshold: float) -> Integers:
    """Returns the places in boxes (M, 4) that are kept when all pairs of each group are compared.

    Groups of size 0 are skipped.
    """
    places = _ranges(starts, sizes)
    followers: Integers = (starts + sizes).repeat(sizes) - places - 1
    first = places.repeat(followers)
    second = _ranges(places + 1, followers)
    corners = boxes.T.copy()
    overlap = overlaps(corners.take(first, 1), corners.take(second, 1), iou_threshold)
    first, second = first[overlap], second[overlap]
    suppressed = np.zeros(len(boxes), bool)
    while len(first) > MAX_SEQUENTIAL:
        # A box that no undecided box precedes is certainly kept, so the boxes that it overlaps are suppressed.
        is_preceded = np.zeros(len(boxes), bool)
        is_preceded[second] = True
        suppressed[second[~is_preceded[first]]] = True
        undecided = ~(suppressed[first] | suppressed[second])
        first, second = first[undecided], second[undecided]
    for one, other in zip(first.tolist(), second.tolist(), strict=True):  # pairs are sorted by their first box
        if not suppressed[one]:
            suppressed[other] = True
    kept: Integers = places[~suppressed[places]]
    return kept


def _unsuppressed_blockwise(boxes: Floats, iou_threshold: float) -> Integers:
    """Returns the places in boxes (M, 4) of one group that are kept.

    The best boxes that are left form a block. Those of them that are kept suppress boxes behind the block.
    """
    corners, left = np.ascontiguousarray(boxes.T), np.arange(len(boxes))
    kept = []
    while len(left):
        block, left = left[:BLOCK], left[BLOCK:]
        own = corners[:, block]
        block = block[_unsuppressed_in_block(overlaps(own[:, :, None], own[:, None], iou_threshold))]
        kept.append(block)
        if len(left):
            left = left[~_is_overlapped(corners[:, left], corners[:, block], iou_threshold)]
    places: Integers = np.concatenate(kept)
    return places


def _unsuppressed_in_block(overlap: Flags) -> list[int]:
    """Returns the places of the kept boxes of a block, given which boxes overlap (n, n)."""
    bits = np.zeros((len(overlap), BLOCK), bool)
    bits[:, : len(overlap)] = overlap
    suppressed, kept = 0, []  # an integer with a bit for each box, and places
    for place, overlapped in enumerate(np.packbits(bits, axis=1, bitorder="little").view("<u8").ravel().tolist()):
        if not suppressed >> place & 1:
            kept.append(place)
            suppressed |= overlapped
    return kept


def _is_overlapped(boxes: Floats, by: Floats, iou_threshold: float) -> Flags:
    """Returns which of boxes (4, n) overlap at least one box of another array (4, m)."""
    flags = np.empty(boxes.shape[1], bool)
    step = max(1, MAX_PAIRS_AT_ONCE // by.shape[1])
    for begin in range(0, len(flags), step):
        chunk = slice(begin, begin + step)
        overlaps(by[:, :, None], boxes[:, None, chunk], iou_threshold).any(0, out=flags[chunk])
    return flags
