"""Non-maximum suppression of a batch of images and all their classes in one call (vision-specific operators, §3.1.1).

Candidates are visited from the best score down, so a later candidate never suppresses an earlier one. A detector wants
only a few boxes. The operator therefore takes the best candidates of all classes first. If an image then lacks boxes,
its remaining candidates are searched as well, without those that overlap a kept box. For 3,234 boxes with 90 classes, a
few hundred of the 291,060 candidates decide. As in the paper, results start as invalid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import nms

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops.candidates import BestCandidates, Scores, best_candidates, keep_best_per_class
from split_infer_ros.vision_ops.host_arrays import Flags, Floats, Integers, to_host
from split_infer_ros.vision_ops.implementations import ImplementationChoice, run_fastest
from split_infer_ros.vision_ops.suppression import overlapping_kept, unsuppressed

CANDIDATES_PER_DETECTION = 4  # taken in the first pass
DIRECT_CANDIDATES_PER_DETECTION = 6  # up to which one image with one class goes straight to torchvision's nms
MAX_KERNEL_CANDIDATES = 2048  # of an image, which one program of the Triton kernel holds
INVALID = -1


class NmsLimits(NamedTuple):
    """What makes a candidate, and what suppresses it; see ``box_nms``."""

    score_threshold: float
    iou_threshold: float
    max_per_class: int | None


def box_nms(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor | None = None,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    max_per_class: int | None = None,
) -> Tensor:
    """Returns the best candidates of each image that overlap no better one of their class.

    Candidates are ordered by descending score, and equal scores by ascending index, on every device. The result equals
    torchvision's ``nms``, applied class by class, to the last bit. A score that is NaN is no candidate.

    A box overlaps nothing if its area is not a number: if a corner is NaN, or if two corners are infinite. An empty or
    inverted box is compared like any other.

    Args:
        boxes: floating (N, n, 4), left, top, right, bottom in any unit.
        scores: floating (N, n), or (N, n, C) if each box has a score for each class. Any strides are accepted, so a
            slice can leave out the background.
        labels: int64 (N, n), the class of each box. None if ``scores`` has all classes, or if there is only one class.
        score_threshold: a candidate's score lies above it.
        iou_threshold: the later of two boxes of one class is dropped if their intersection over union lies above it.
        max_detections: at most this many boxes of an image are kept.
        max_per_class: only the best candidates of each class take part, this many; None for all. Not with ``labels``.

    Returns:
        int64 (N, max_detections): indices of the kept candidates into ``scores[i].flatten()``, then -1 in the unused
        places.

    Raises:
        ConfigurationError: the shapes do not fit, or a limit is out of its range.
    """
    limits = NmsLimits(score_threshold, iou_threshold, max_per_class)
    _check(boxes, scores, labels, limits=limits, max_detections=max_detections)
    found: Integers = np.full((len(scores), max_detections), INVALID)
    if not found.size or not scores.numel():
        return torch.from_numpy(found).to(scores.device)
    if _suits_torchvision(boxes, scores, labels):
        kept = _kept_by_torchvision(boxes, scores, limits, DIRECT_CANDIDATES_PER_DETECTION * max_detections)
        if kept is not None:
            found[0, : len(kept)] = kept[:max_detections]
            return torch.from_numpy(found).to(scores.device)
    class_scores = scores if scores.ndim == 3 else scores.unsqueeze(2)
    if max_per_class is not None and max_per_class >= class_scores.shape[1]:
        limits = limits._replace(max_per_class=None)
    _fill(
        found,
        boxes=to_host(boxes),
        scores=to_host(class_scores) if scores.device.type == "cpu" else class_scores,
        labels=None if labels is None else to_host(labels),
        limits=limits,
    )
    return torch.from_numpy(found).to(scores.device)


def _suits_torchvision(boxes: Tensor, scores: Tensor, labels: Tensor | None) -> bool:
    """Whether torchvision's ``nms`` gives the result directly: for one image with one class.

    It rounds differently on a GPU, and it accepts only scores of the boxes' type.
    """
    is_single = len(scores) == 1 and labels is None and scores.ndim == 2
    return is_single and scores.device.type == "cpu" and scores.dtype == boxes.dtype


def _kept_by_torchvision(boxes: Tensor, scores: Tensor, limits: NmsLimits, max_candidates: int) -> Integers | None:
    """Runs torchvision's ``nms`` on one image, which has the least overhead; None if there are too many candidates."""
    image_boxes, image_scores = boxes[0], scores[0]
    if scores.itemsize < 4:  # torchvision takes no bfloat16
        image_boxes, image_scores = image_boxes.float(), image_scores.float()
    candidates = (image_scores > limits.score_threshold).nonzero().flatten()
    if len(candidates) > max_candidates:
        return None
    order = nms(image_boxes[candidates], image_scores[candidates], limits.iou_threshold)
    return to_host(candidates[order])


def _fill(found: Integers, *, boxes: Floats, scores: Scores, labels: Integers | None, limits: NmsLimits) -> None:
    """Writes the indices of the best of scores (N, n, C) into ``found``, as many as it has places."""
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
    keep = _unsuppressed(boxes[images, box_indices], images, candidate_labels, scores, iou_threshold=iou_threshold)
    return images[keep], indices[keep]


def _unsuppressed(boxes: Floats, images: Integers, labels: Integers, scores: Scores, *, iou_threshold: float) -> Flags:
    """Returns which candidates are kept: bool (M,).

    The host decides, or the device of the scores if that was measured to be faster.
    """
    counts = np.bincount(images)
    if isinstance(scores, np.ndarray) or counts.max() > MAX_KERNEL_CANDIDATES or boxes.dtype != np.float32:
        return unsuppressed(boxes, images, labels, iou_threshold=iou_threshold)

    def on_gpu() -> Flags:
        from split_infer_ros.vision_ops.kernels.suppression import unsuppressed_batch  # Triton is optional

        device = scores.device
        keep: Flags = to_host(
            unsuppressed_batch(
                torch.from_numpy(boxes).to(device),
                torch.from_numpy(labels).to(device),
                torch.from_numpy(np.append(0, counts.cumsum())).to(device),
                max_count=int(counts.max()),
                iou_threshold=iou_threshold,
            )
        )
        return keep

    implementations = {
        ImplementationChoice.PLAIN: lambda: unsuppressed(boxes, images, labels, iou_threshold=iou_threshold),
        ImplementationChoice.TRITON: on_gpu,
    }
    return run_fastest("box_nms", scores, [len(counts), int(counts.max())], implementations)


def _check(boxes: Tensor, scores: Tensor, labels: Tensor | None, *, limits: NmsLimits, max_detections: int) -> None:
    if scores.ndim not in (2, 3) or boxes.shape != (*scores.shape[:2], 4):
        raise ConfigurationError(
            f"boxes {tuple(boxes.shape)} and scores {tuple(scores.shape)} do not fit: boxes are (N, n, 4), and scores "
            f"are (N, n), or (N, n, C) with one score for each class."
        )
    if labels is not None and labels.shape != scores.shape:
        raise ConfigurationError(
            f"labels {tuple(labels.shape)} and scores {tuple(scores.shape)} do not fit: each of the (N, n) boxes has "
            f"one score and one label, or a score for each class and no label."
        )
    if not 0 <= limits.iou_threshold <= 1:
        raise ConfigurationError(f"iou_threshold is {limits.iou_threshold}; it must lie between 0 and 1.")
    if max_detections < 0:
        raise ConfigurationError(f"max_detections is {max_detections}; it must be 0 or more.")
    max_per_class = limits.max_per_class
    if max_per_class is not None and max_per_class < 1:
        raise ConfigurationError(f"max_per_class is {max_per_class}; it must be 1 or more.")
    if max_per_class is not None and labels is not None:
        raise ConfigurationError(
            f"max_per_class is {max_per_class}; it works only for scores of all classes, without labels."
        )
