"""What a head gives for one image, and the limits it is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from split_infer_ros.vision_ops.box_nms import box_nms


@dataclass(frozen=True, slots=True)
class Limits:
    """What post-processing keeps; may change between two batches.

    Attributes:
        score_threshold: scores below it are dropped, 0..1; of a detector's, as torchvision has it, those up to it.
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


class Candidates(NamedTuple):
    """What a batch of images may hold, before overlaps are suppressed; ``n`` boxes an image, all within the input.

    Attributes:
        boxes: float32 (N, n, 4), left, top, right, bottom in pixels.
        scores: (N, n), 0..1, or (N, n, C) where each box has a score for each of C classes.
        labels: int64 (N, n), the class of each box; None where ``scores`` has all classes.
        max_per_class: at most so many of a class take part, its best; None for all.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor | None = None
    max_per_class: int | None = None


def suppress(candidates: Candidates, limits: Limits) -> list[Detections]:
    """Of each image's candidates those above the threshold that overlap no better one of their class.

    The whole batch at once; results are on the candidates' device.
    """
    boxes, scores, labels, max_per_class = candidates
    kept = box_nms(
        boxes,
        scores,
        labels,
        score_threshold=limits.score_threshold,
        iou_threshold=limits.nms_threshold,
        max_detections=limits.max_detections,
        max_per_class=max_per_class,
    )
    classes = scores.shape[2] if labels is None else 1
    found = []
    for image, places in enumerate(kept):
        mine = places[places >= 0]
        rows = mine // classes
        classes_of = mine % classes if labels is None else labels[image][rows]
        found.append(Detections(boxes[image][rows], scores[image].flatten()[mine], classes_of))
    return found


class SuppressOverlaps:
    """The decode of a detector: candidates from the network's outputs, then ``suppress``.

    Args:
        make: gives the function from the outputs of a batch to its candidates; called when that is first needed. The
            function must not look at values, so that it can be traced.
    """

    def __init__(self, make: Callable[[], Callable[[tuple[Tensor, ...]], Candidates]]) -> None:
        self._make = make

    @cached_property
    def candidates(self) -> Callable[[tuple[Tensor, ...]], Candidates]:
        """The function from outputs to candidates."""
        return self._make()

    def __call__(self, outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        """Detections of each image of the batch."""
        return suppress(self.candidates(outputs), limits)


def as_given(outputs: tuple[Tensor, ...]) -> Candidates:
    """Of a network that gives them itself: scores (N, n), boxes (N, n, 4) and labels int64 (N, n)."""
    scores, boxes, labels = outputs
    return Candidates(boxes, scores, labels)


suppress_all = SuppressOverlaps(lambda: as_given)
