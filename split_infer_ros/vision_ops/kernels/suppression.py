"""Non-maximum suppression of a batch: one program an image, without a divergent branch (§3.1.1)."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor


def unsuppressed_batch(
    boxes: Tensor, labels: Tensor, offsets: Tensor, *, max_count: int, iou_threshold: float
) -> Tensor:
    """Returns which candidates are kept: bool (M,).

    Args:
        boxes: float32 (M, 4), best first within each image.
        labels: int64 (M,), the classes of the boxes.
        offsets: int64 (N + 1,), where the boxes of each image start, and then M.
        max_count: the most candidates that an image has; one program holds all of an image in registers.
        iou_threshold: the later of two boxes of a class in an image is suppressed if they overlap by more.
    """
    threshold = np.float32(iou_threshold)
    if threshold > iou_threshold:  # so that a float32 lies above it exactly if it lies above iou_threshold
        threshold = np.nextafter(threshold, np.float32(-1))
    keep = torch.zeros(len(boxes), dtype=torch.int8, device=boxes.device)
    block = max(16, triton.next_power_of_2(max_count))
    # A fused product and sum would round once where the other implementations round twice.
    _suppress[(len(offsets) - 1,)](
        boxes.contiguous(), labels, offsets, keep, float(threshold), BLOCK=block, enable_fp_fusion=False
    )
    return keep.bool()


@triton.jit
def _suppress(boxes, labels, offsets, keep, threshold, BLOCK: tl.constexpr):
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
    tl.store(keep + begin + index, valid.to(tl.int8), mask=inside)
