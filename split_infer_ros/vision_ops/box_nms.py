"""Non-maximum suppression of a batch of images and all their classes in one call (paper 004, §3.1.1).

On a CPU, NumPy does the work. On a GPU there are two implementations, and the one that was measured to be faster is
used. In the first, Triton kernels select, sort and suppress, and only the result leaves the GPU. In the second, the
scores that may decide are copied to the host, and NumPy does the work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from split_infer_ros.buffers.host_arrays import Array, Integers, Values, as_tensor, to_host
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops.host_nms import NmsLimits, fill_with_best
from split_infer_ros.vision_ops.implementations import ImplementationChoice, run_fastest

if TYPE_CHECKING:
    from torch import Tensor

Boxes = TypeVar("Boxes", Array, "Tensor")  # arrays, or tensors on any device

MAX_KERNEL_SCORES = 2**30  # scores of a batch: the kernels number their places by 32 bits
INVALID = -1


def box_nms(
    boxes: Boxes,
    scores: Boxes,
    labels: Boxes | None = None,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    max_per_class: int | None = None,
) -> Boxes:
    """Returns the best candidates of each image, without those that overlap a better kept one of their class.

    A candidate is a box with a score for a class. There are n boxes in each of N images.

    Candidates are ordered by descending score, and equal scores by ascending index, on every device. The result equals
    torchvision's ``nms``, applied class by class, to the last bit. A score that is NaN is no candidate.

    A box overlaps nothing if its area is not a number: if a corner is NaN, or if two corners are infinite. An empty or
    inverted box is compared like any other.

    Arguments are all arrays, or all tensors on one device, and so is the result.

    Args:
        boxes: floating (N, n, 4), left, top, right, bottom in any unit.
        scores: floating (N, n), or (N, n, C) if each box has a score for each of C classes. Any strides are accepted,
            so a slice can leave out the background.
        labels: int64 (N, n), the class of each box. None if ``scores`` has all classes, or if there is only one class.
        score_threshold: a candidate's score must lie above this.
        iou_threshold: of two candidates of one class, the later is dropped if their intersection over union lies above
            this.
        max_detections: at most this many boxes of an image are kept.
        max_per_class: how many of the best candidates of each class take part; None for all. It cannot be given
            together with ``labels``.

    Returns:
        int64 (N, max_detections): indices of the kept candidates into ``scores[i].flatten()``, then -1 in the unused
        places.

    Raises:
        ConfigurationError: the shapes do not fit, or a limit is out of its range.
    """
    limits = NmsLimits(score_threshold, iou_threshold, max_per_class)
    _check(boxes, scores, labels, limits=limits, max_detections=max_detections)
    found: Integers = np.full((len(scores), max_detections), INVALID)
    if not found.size or not math.prod(scores.shape):
        return _as_given(found, scores)
    class_scores: Boxes = scores if scores.ndim == 3 else scores[..., None]
    if max_per_class is not None and max_per_class >= class_scores.shape[1]:
        limits = limits._replace(max_per_class=None)

    def on_host() -> Boxes:
        fill_with_best(
            found,
            boxes=to_host(boxes),
            scores=class_scores if _is_on_gpu(class_scores) else to_host(class_scores),
            labels=None if labels is None else to_host(labels),
            limits=limits,
        )
        return _as_given(found, scores)

    if isinstance(scores, np.ndarray) or not _suits_kernels(boxes, scores):
        return on_host()
    implementations = {
        ImplementationChoice.PLAIN: on_host,
        ImplementationChoice.TRITON: lambda: _by_kernels(
            boxes, class_scores, labels, limits=limits, max_detections=max_detections
        ),
    }
    return run_fastest("box_nms", class_scores, [*class_scores.shape, max_detections], implementations)


def _as_given(found: Integers, scores: Boxes) -> Boxes:
    """Returns what was found as an array if the scores are one, else as a tensor on their device."""
    if isinstance(scores, np.ndarray):
        return found
    return as_tensor(found).to(scores.device)


def _is_on_gpu(values: Values) -> bool:
    return not isinstance(values, np.ndarray) and values.device.type == "cuda"


def _suits_kernels(boxes: Values, scores: Values) -> bool:
    """Returns whether the kernels can take these numbers: on a GPU, of at most 32 bits, and not too many."""
    is_narrow = boxes.itemsize <= 4 and scores.itemsize <= 4
    return _is_on_gpu(scores) and is_narrow and math.prod(scores.shape) <= MAX_KERNEL_SCORES


def _by_kernels(
    boxes: Tensor, scores: Tensor, labels: Tensor | None, *, limits: NmsLimits, max_detections: int
) -> Tensor:
    from split_infer_ros.vision_ops.kernels.box_nms import nms_on_device  # only here: Triton is optional

    return nms_on_device(boxes, scores, labels, max_detections=max_detections, **limits._asdict())


def _check(boxes: Values, scores: Values, labels: Values | None, *, limits: NmsLimits, max_detections: int) -> None:
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
