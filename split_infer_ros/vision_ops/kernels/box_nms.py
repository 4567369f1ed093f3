"""Non-maximum suppression of a batch that never leaves the device: selection, sorting and suppression (§3.1.1).

The host waits for nothing, since it need not know how many candidates there are. So the calls can be recorded in a
CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from split_infer_ros.vision_ops.kernels.segmented_argsort import argsort_by_merging
from split_infer_ros.vision_ops.kernels.selection import keep_best, select_above
from split_infer_ros.vision_ops.kernels.suppression import suppress_sorted


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
    """Computes ``box_nms``. It takes 36 bytes of the device's memory a score while it works.

    Args:
        boxes: float32, float16 or bfloat16 (N, n, 4).
        scores: of such a type, (N, n, C), each of them 1 or more, with any strides.
        labels: int64 (N, n), or None.
        score_threshold, iou_threshold, max_per_class: as in ``box_nms``.
        max_detections: 1 or more.
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
