"""The boxes that non-maximum suppression should keep, computed by torchvision."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import nms


def kept_class_by_class(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_detections: int,
    max_per_class: int | None = None,
) -> Tensor:
    """Returns the indices of the boxes of one image that torchvision's ``nms`` keeps if it is called for each class.

    Args:
        boxes: (n, 4), left, top, right and bottom.
        scores, labels: (n,).
        score_threshold: boxes with higher scores are candidates.
        iou_threshold: the largest overlap of two boxes that are both kept.
        max_detections: how many boxes are kept at most, the best first.
        max_per_class: how many candidates of a class take part, the best ones; None for all.
    """
    kept = [torch.zeros(0, dtype=torch.int64)]
    for label in labels.unique():
        (candidates,) = ((labels == label) & (scores > score_threshold)).nonzero(as_tuple=True)
        candidates = candidates[scores[candidates].argsort(descending=True, stable=True)][:max_per_class]
        kept.append(candidates[nms(boxes[candidates], scores[candidates], iou_threshold)])
    found = torch.cat(kept).sort().values
    return found[scores[found].argsort(descending=True, stable=True)][:max_detections]


def check_kept(found: Tensor, expected: Tensor) -> None:
    """Asserts that ``box_nms`` returned the expected indices for one image, int64, and -1 in all other places."""
    assert found.dtype == torch.int64
    assert found[: len(expected)].tolist() == expected.tolist()
    assert (found[len(expected) :] == -1).all()
