"""Non-maximum suppression of a batch: one program an image, without a divergent branch (§3.1.1)."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor


def unsuppressed_at_once(boxes: Tensor, labels: Tensor, offsets: Tensor, most: int, iou_threshold: float) -> Tensor:
    """The candidates that are left: bool (M,).

    Args:
        boxes: float32 (M, 4), of each image in the order in which they are preferred.
        labels: int64 (M,), their classes.
        offsets: int64 (N + 1,), where each image's start, and M.
        most: candidates that an image has at most; one program holds them all, in registers.
        iou_threshold: of two of a class in an image that overlap by more, the later one is suppressed.
    """
    threshold = np.float32(iou_threshold)
    if threshold > iou_threshold:  # so that being above it is the same in float32
        threshold = np.nextafter(threshold, np.float32(-1))
    left = torch.zeros(len(boxes), dtype=torch.int8, device=boxes.device)
    block = max(16, triton.next_power_of_2(most))
    # The fused product and sum would round once where the other forms round twice.
    _suppress[(len(offsets) - 1,)](
        boxes.contiguous(), labels, offsets, left, float(threshold), BLOCK=block, enable_fp_fusion=False
    )
    return left.bool()


@triton.jit
def _suppress(boxes, labels, offsets, left, threshold, BLOCK: tl.constexpr):
    begin = tl.load(offsets + tl.program_id(0))
    count = tl.load(offsets + tl.program_id(0) + 1) - begin
    index = tl.arange(0, BLOCK)
    inside = index < count
    corner = boxes + (begin + index) * 4
    x1, y1 = tl.load(corner, mask=inside, other=0.0), tl.load(corner + 1, mask=inside, other=0.0)
    x2, y2 = tl.load(corner + 2, mask=inside, other=0.0), tl.load(corner + 3, mask=inside, other=0.0)
    label = tl.load(labels + begin + index, mask=inside, other=0)
    area = (x2 - x1) * (y2 - y1)
    valid = inside.to(tl.int32)
    for i in range(count):
        one = boxes + (begin + i) * 4
        left1, top1, right1, bottom1 = tl.load(one), tl.load(one + 1), tl.load(one + 2), tl.load(one + 3)
        width = tl.maximum(tl.minimum(right1, x2) - tl.maximum(left1, x1), 0.0)
        height = tl.maximum(tl.minimum(bottom1, y2) - tl.maximum(top1, y1), 0.0)
        shared = width * height
        union = (right1 - left1) * (bottom1 - top1) + area - shared
        hit = (tl.div_rn(shared, union) > threshold) & (label == tl.load(labels + begin + i)) & (index > i)
        still = tl.sum(tl.where(index == i, valid, 0), 0)
        valid = valid * (1 - hit.to(tl.int32) * still)
    tl.store(left + begin + index, valid.to(tl.int8), mask=inside)
