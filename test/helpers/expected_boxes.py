"""What non-maximum suppression keeps, by torchvision."""

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
    """Returns the candidates of one image that torchvision's ``nms`` keeps if it is called for each class."""
    kept = [torch.zeros(0, dtype=torch.int64)]
    for label in labels.unique():
        (candidates,) = ((labels == label) & (scores > score_threshold)).nonzero(as_tuple=True)
        candidates = candidates[scores[candidates].argsort(descending=True, stable=True)][:max_per_class]
        kept.append(candidates[nms(boxes[candidates], scores[candidates], iou_threshold)])
    found = torch.cat(kept).sort().values
    return found[scores[found].argsort(descending=True, stable=True)][:max_detections]


def check_kept(found: Tensor, expected: Tensor) -> None:
    """Checks one image's result of ``box_nms``: the expected indices, and then -1."""
    assert found.dtype == torch.int64
    assert found[: len(expected)].tolist() == expected.tolist()
    assert (found[len(expected) :] == -1).all()
