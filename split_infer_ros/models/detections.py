"""What a head gives for one image, and the limits it is held to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.ops import batched_nms


@dataclass(frozen=True, slots=True)
class Limits:
    """What post-processing keeps; may change between two batches.

    Attributes:
        score_threshold: scores below it are dropped, 0..1.
        nms_threshold: of two boxes of one class that overlap by more (IoU), the lower score is dropped, 0..1.
        max_detections: at most so many an image, best scores first.
    """

    score_threshold: float = 0.5
    nms_threshold: float = 0.5
    max_detections: int = 100


@dataclass(frozen=True, slots=True)
class Detections:
    """The objects found in one image, best score first.

    Attributes:
        boxes: float32 (n, 4), left, top, right, bottom in pixels.
        scores: float32 (n,), 0..1, descending.
        labels: int64 (n,), indices into the model's labels.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.scores)

    @classmethod
    def empty(cls) -> Detections:
        """No objects."""
        return cls(torch.zeros((0, 4)), torch.zeros(0), torch.zeros(0, dtype=torch.int64))


def suppress(scores: Tensor, boxes: Tensor, labels: Tensor, limits: Limits) -> Detections:
    """Of one image's candidates those above the threshold that overlap no better one of their class.

    Args:
        scores: (n,), 0..1.
        boxes: (n, 4).
        labels: int64 (n,).
        limits: which are kept.
    """
    chosen = (scores > limits.score_threshold).nonzero().flatten()
    scores, boxes, labels = scores[chosen], boxes[chosen], labels[chosen]
    kept = batched_nms(boxes, scores, labels, limits.nms_threshold)[: limits.max_detections]
    return Detections(boxes[kept], scores[kept], labels[kept])


def suppress_all(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
    """``suppress`` for each image of a batch: scores (N, n), boxes (N, n, 4) and labels (N, n)."""
    scores, boxes, labels = outputs
    return [suppress(*image, limits) for image in zip(scores, boxes, labels, strict=True)]
