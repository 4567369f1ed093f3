"""Non-maximum suppression of a batch that never leaves the GPU: selection, sorting and suppression.

This is paper 004, §3.1.1. One program for each image suppresses its sorted candidates. It ends when it has kept as many
boxes as are wanted. The host does not wait, because it need not know how many candidates there are. So the calls can be
recorded in a CUDA graph.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from split_infer_ros.vision_ops.kernels.segmented_argsort import argsort_by_merging
from split_infer_ros.vision_ops.kernels.selection import keep_best, select_above

CHUNK = 64  # candidates that a program holds at a time
KEPT = 16  # kept boxes with which it compares them at a time
INVALID = -1


def nms_on_device(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor | None = None,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    max_per_class: int | None,
) -> Tensor:
    """Computes ``box_nms`` on a GPU. While it works, it takes 36 bytes of memory for each score.

    N images have n boxes with C scores each.

    Args:
        boxes: float32, float16 or bfloat16 (N, n, 4).
        scores: float32, float16 or bfloat16 (N, n, C), each dimension 1 or more, with any strides.
        labels: int64 (N, n), or None.
        score_threshold, iou_threshold, max_per_class: as in ``box_nms``.
        max_detections: 1 or more.

    Returns:
        int64 (N, max_detections), as from ``box_nms``.
    """
    images, boxes_per_image, classes = scores.shape
    candidates = scores.to(torch.float32)
    if max_per_class is not None:
        by_class = candidates.transpose(1, 2).reshape(images * classes, boxes_per_image).contiguous()
        best = keep_best(by_class, max_per_class, score_threshold)
        candidates = best.view(images, classes, boxes_per_image).transpose(1, 2)
    keys, places, offsets = select_above(candidates.reshape(images, -1).contiguous(), score_threshold)
    return suppress_sorted(
        boxes.to(torch.float32).contiguous(),
        places,
        argsort_by_merging(keys, offsets),
        offsets,
        None if labels is None else labels.contiguous(),
        classes=classes,
        max_detections=max_detections,
        iou_threshold=iou_threshold,
    )


def suppress_sorted(
    boxes: Tensor,
    places: Tensor,
    order: Tensor,
    offsets: Tensor,
    labels: Tensor | None = None,
    *,
    classes: int,
    max_detections: int,
    iou_threshold: float,
) -> Tensor:
    """Returns the best candidates of each image, without those that overlap a better kept one of their class.

    Each program of the kernel takes the candidates of one image, chunk by chunk. It first compares a chunk with all
    boxes that are kept already. Then it keeps the first candidate that is left, drops those that overlap it, and
    repeats this.

    Args:
        boxes: float32 (N, n, 4), contiguous, n boxes for each of N images.
        places: int32 (M,), the place of each of M candidates in the scores (n, C) of its image.
        order: int64 (M,), the indices that sort the candidates: the best of each image first, one image behind the
            other.
        offsets: int64 (N + 1,), the start of each image's candidates in ``order``, and at the end the number of all.
        labels: int64 (N, n), contiguous, the class of each box; None if a candidate's place tells its class.
        classes: C, the number of scores of a box.
        max_detections: at most this many boxes of an image are kept.
        iou_threshold: of two boxes of a class, the later is dropped if their intersection over union lies above this.

    Returns:
        int64 (N, max_detections), the places of the kept candidates, and then -1.
    """
    threshold = np.float32(iou_threshold)
    if float(threshold) > iou_threshold:  # so that a float32 lies above it exactly if it lies above iou_threshold
        threshold = np.nextafter(threshold, np.float32(-1))
    images, boxes_per_image, _ = boxes.shape
    found = torch.full((images, max_detections), INVALID, dtype=torch.int64, device=boxes.device)
    # A fused product and sum would round once where the other implementations round twice.
    _suppress[(images,)](
        boxes,
        offsets if labels is None else labels,
        places,
        order,
        offsets,
        found,
        boxes_per_image,
        classes,
        max_detections,
        float(threshold),
        HAS_LABELS=labels is not None,
        CHUNK=CHUNK,
        KEPT=KEPT,
        enable_fp_fusion=False,
    )
    return found


@triton.jit
def _suppress(
    boxes,
    labels,
    places,
    order,
    offsets,
    found,
    boxes_per_image,
    classes,
    max_detections,
    threshold,
    HAS_LABELS: tl.constexpr,
    CHUNK: tl.constexpr,
    KEPT: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(offsets + image), tl.load(offsets + image + 1)
    image_boxes, image_labels = boxes + image * boxes_per_image * 4, labels + image * boxes_per_image
    image_found = found + image * max_detections
    lane = tl.arange(0, CHUNK)
    count = 0
    while (begin < end) & (count < max_detections):
        inside = begin + lane < end
        index = tl.load(places + tl.load(order + begin + lane, mask=inside, other=0), mask=inside, other=0)
        corner = image_boxes + index // classes * 4
        left, top = tl.load(corner, mask=inside, other=0.0), tl.load(corner + 1, mask=inside, other=0.0)
        right, bottom = tl.load(corner + 2, mask=inside, other=0.0), tl.load(corner + 3, mask=inside, other=0.0)
        label = _label(image_labels, index, classes, HAS_LABELS)
        alive = inside.to(tl.int32)
        for start in range(0, count, KEPT):
            rank = start + tl.arange(0, KEPT)
            known = rank < count
            kept = tl.load(image_found + rank, mask=known, other=0).to(tl.int32)
            kept_corner = image_boxes + kept // classes * 4
            hit = _overlaps(
                left[:, None],
                top[:, None],
                right[:, None],
                bottom[:, None],
                tl.load(kept_corner, mask=known, other=0.0)[None, :],
                tl.load(kept_corner + 1, mask=known, other=0.0)[None, :],
                tl.load(kept_corner + 2, mask=known, other=0.0)[None, :],
                tl.load(kept_corner + 3, mask=known, other=0.0)[None, :],
                threshold,
            )
            kept_label = _label(image_labels, kept, classes, HAS_LABELS)
            hit = hit & (label[:, None] == kept_label[None, :]) & known[None, :]
            alive = alive * (1 - tl.max(hit.to(tl.int32), 1))
        first = tl.min(tl.where(alive > 0, lane, CHUNK), 0)
        while (first < CHUNK) & (count < max_detections):
            one = tl.sum(tl.where(lane == first, index, 0), 0)
            tl.store(image_found + count, one.to(tl.int64))
            of_one = image_boxes + one // classes * 4
            hit = _overlaps(
                left,
                top,
                right,
                bottom,
                tl.load(of_one),
                tl.load(of_one + 1),
                tl.load(of_one + 2),
                tl.load(of_one + 3),
                threshold,
            )
            hit = (hit & (label == _label(image_labels, one, classes, HAS_LABELS))) | (lane == first)
            alive = alive * (1 - hit.to(tl.int32))
            first = tl.min(tl.where(alive > 0, lane, CHUNK), 0)
            count += 1
        tl.debug_barrier()  # all threads read what one thread has stored
        begin += CHUNK


@triton.jit
def _label(labels, index, classes, HAS_LABELS: tl.constexpr):
    return tl.load(labels + index) if HAS_LABELS else index % classes


@triton.jit
def _overlaps(left, top, right, bottom, left2, top2, right2, bottom2, threshold):
    width = tl.maximum(tl.minimum(right, right2) - tl.maximum(left, left2), 0.0)
    height = tl.maximum(tl.minimum(bottom, bottom2) - tl.maximum(top, top2), 0.0)
    shared = width * height
    union = (right - left) * (bottom - top) + (right2 - left2) * (bottom2 - top2) - shared
    return tl.div_rn(shared, union) > threshold
