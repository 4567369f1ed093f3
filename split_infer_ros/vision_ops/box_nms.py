"""Non-maximum suppression of a batch of images and all their classes in one call (vision-specific operators, §3.1.1).

Of what is left only the best few are wanted, and what comes later in the order cannot undo what was kept before. So the
best candidates of all classes are taken first. Only images that have not got enough are looked at again, without what
overlaps what they have: where a detector gives 3,234 boxes a score for each of 90 classes, a few hundred of 291,060
candidates decide. As in the paper, results start as invalid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import nms

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops.arrays import Flags, Floats, Integers, to_host
from split_infer_ros.vision_ops.candidates import BestCandidates, Scores, best_candidates, first_of_each
from split_infer_ros.vision_ops.fastest import PLAIN, TRITON, fastest
from split_infer_ros.vision_ops.suppression import overlaps, unsuppressed

FIRST = 4  # candidates for each box that is wanted
HELD = 2048  # candidates of an image that the kernel takes
ALONE = 6  # the same, of one image with one class
AT_ONCE = 1 << 18  # pairs of boxes, all of which a cache holds
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

    Order is by descending score, of equal scores by ascending index, on every device. What is kept is what
    torchvision's ``nms`` keeps, class by class, to the last bit. A score that is NaN is no candidate. A box whose area
    is not a number (a corner is NaN, or two are infinite) overlaps nothing; one that is empty or inside out is compared
    as any other.

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
    if found.size and scores.numel() and not _one_alone(found, boxes, scores, labels, score_threshold, iou_threshold):
        offered = scores if scores.ndim == 3 else scores.unsqueeze(2)
        most = most_of_a_class if most_of_a_class is not None and most_of_a_class < offered.shape[1] else None
        theirs = None if labels is None else to_host(labels)
        limits = NmsLimits(score_threshold, iou_threshold, most)
        _fill(found, to_host(boxes), to_host(offered) if scores.device.type == "cpu" else offered, theirs, limits)
    return torch.from_numpy(found).to(scores.device)


def _one_alone(
    found: Integers, boxes: Tensor, scores: Tensor, labels: Tensor | None, score_threshold: float, iou_threshold: float
) -> bool:
    """One image with one class and few candidates: True, and done, as torchvision's own has the least to set up.

    Not on a GPU, where it rounds in another way, and not with scores of another type, which it does not take.
    """
    if len(scores) > 1 or labels is not None or scores.ndim > 2:
        return False
    if scores.device.type != "cpu" or scores.dtype != boxes.dtype:
        return False
    box, score = (of[0] if of.itemsize > 2 else of[0].float() for of in (boxes, scores))
    candidates = (score > score_threshold).nonzero().flatten()
    if len(candidates) > ALONE * found.shape[1]:
        return False
    kept = to_host(candidates[nms(box[candidates], score[candidates], iou_threshold)])
    found[0, : len(kept)] = kept[: found.shape[1]]
    return True


class NmsLimits(NamedTuple):
    """What makes a candidate, and what suppresses it."""

    score: float
    iou: float
    most_of_a_class: int | None


def _fill(found: Integers, boxes: Floats, scores: Scores, labels: Integers | None, limits: NmsLimits) -> None:
    """Find the best of scores (N, n, C), as many as ``found`` has places."""
    wanted, classes, most = found.shape[1], scores.shape[2], limits.most_of_a_class
    best = best_candidates(scores, FIRST * wanted, limits.score)
    if not len(best.indices):
        return
    if most is not None and np.bincount(best.images * classes + best.indices % classes).max() > most:
        scores, most = first_of_each(to_host(scores), most), None
        best = best_candidates(scores, FIRST * wanted, limits.score)
    images, indices = _kept_of(best, boxes, scores, labels, limits.iou)
    counts = np.bincount(images, minlength=len(found))
    rank = np.arange(len(images)) - (counts.cumsum() - counts)[images]
    fits = rank < wanted
    found[images[fits], rank[fits]] = indices[fits]
    for image in np.flatnonzero(best.more & (counts < wanted)):
        row = slice(image, image + 1)
        rest = to_host(scores[row])
        rest = rest.copy() if most is None else first_of_each(rest, most)
        _fill_up(found[image], counts[image], boxes[row], rest, None if labels is None else labels[row], limits)


def _fill_up(
    found: Integers, count: int, boxes: Floats, rest: Floats, labels: Integers | None, limits: NmsLimits
) -> None:
    """Behind the ``count`` that one image has, the best of what they leave of ``rest``, which is used up."""
    kept, more = found[:count], True
    while more and count < len(found):
        rest[0][_struck(kept, boxes[0], rest.shape[2], None if labels is None else labels[0], limits.iou)] = -np.inf
        best = best_candidates(rest, FIRST * (len(found) - count), limits.score)
        kept, more = _kept_of(best, boxes, rest, labels, limits.iou)[1][: len(found) - count], best.more[0]
        found[count : count + len(kept)] = kept
        count += len(kept)


def _kept_of(
    candidates: BestCandidates, boxes: Floats, scores: Scores, labels: Integers | None, iou_threshold: float
) -> tuple[Integers, Integers]:
    """Image and index of those that are not suppressed."""
    images, indices, _ = candidates
    classes = scores.shape[2]
    anchors = indices // classes if classes > 1 else indices
    its = indices % classes if labels is None else labels[images, anchors]
    left = _left(boxes[images, anchors], images, its, iou_threshold, scores)
    return images[left], indices[left]


def _left(boxes: Floats, images: Integers, labels: Integers, iou_threshold: float, scores: Scores) -> Flags:
    """Which are not suppressed; decided on the host, or where the scores are if that was measured to be faster."""
    counts = np.bincount(images)
    if isinstance(scores, np.ndarray) or counts.max() > HELD or boxes.dtype != np.float32:
        return unsuppressed(boxes, images, labels, iou_threshold)

    def on_gpu() -> Flags:
        from split_infer_ros.vision_ops.kernels.suppression import unsuppressed_at_once  # Triton is optional

        offsets = np.append(0, counts.cumsum())
        corners, theirs, starts = (torch.from_numpy(array).to(scores.device) for array in (boxes, labels, offsets))
        left: Flags = to_host(unsuppressed_at_once(corners, theirs, starts, int(counts.max()), iou_threshold))
        return left

    forms = {PLAIN: lambda: unsuppressed(boxes, images, labels, iou_threshold), TRITON: on_gpu}
    return fastest("box_nms", scores, [len(counts), int(counts.max())], forms)


def _struck(kept: Integers, boxes: Floats, classes: int, labels: Integers | None, iou_threshold: float) -> Flags:
    """The candidates (n, C) of an image that those just kept are, or overlap."""
    corners = np.ascontiguousarray(boxes.T)
    struck = np.zeros((classes, corners.shape[1]), bool)
    step = max(1, AT_ONCE // corners.shape[1])
    for some in (kept[begin : begin + step] for begin in range(0, len(kept), step)):
        hit = overlaps(corners[:, some // classes, None], corners[:, None], iou_threshold)
        if labels is None:
            for its, label in zip(hit, some % classes, strict=True):
                struck[label] |= its
        else:
            struck[0] |= (hit & (labels == labels[some, None])).any(0)
    struck[kept % classes, kept // classes] = True
    flags: Flags = struck.T
    return flags


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
            f"labels {tuple(labels.shape)} and scores {tuple(scores.shape)} do not fit: each of the (N, n) boxes has "
            f"one score and one label, or a score for each class and no label."
        )
    if not 0 <= iou_threshold <= 1:
        raise ConfigurationError(f"iou_threshold is {iou_threshold}; it is a part, 0 to 1.")
    if wanted < 0:
        raise ConfigurationError(f"max_detections is {wanted}; it is 0 or more.")
    if most is not None and (most < 1 or labels is not None):
        raise ConfigurationError(f"most_of_a_class is {most}; it is 1 or more, and for scores of all classes only.")
