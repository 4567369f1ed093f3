"""Selects detections among the candidates of a detector in torch. Candidates are its boxes before suppression."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from split_infer_ros.buffers.host_arrays import to_host
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.vision_ops.box_nms import box_nms


class Candidates(NamedTuple):
    """Possible objects in N images, before overlapping ones are suppressed. Each image has n boxes inside the input.

    Attributes:
        boxes: float32 (N, n, 4), left, top, right, bottom in pixels of the model's input.
        scores: (N, n), 0..1, or (N, n, C) if each box has a score for each of C classes.
        labels: int64 (N, n), the class of each box; None if ``scores`` has all classes.
        max_per_class: how many candidates of each class suppression looks at: those with the best scores. None for all.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor | None = None
    max_per_class: int | None = None


def suppress(candidates: Candidates, limits: Limits) -> list[Detections]:
    """Returns the detections of each image: the candidates that suppression keeps.

    A candidate is kept if its score lies above the threshold, and no better kept candidate of its class overlaps it too
    much. ``limits`` has the thresholds of score and overlap, and the largest number of detections.

    The whole batch is processed at once, on the candidates' device. The host waits for the number of detections, and
    then for the detections of all images together.
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
    counts = (kept >= 0).sum(1).tolist()
    kept = kept[:, : max(counts, default=0)].clamp(min=0)
    images = torch.arange(len(kept), device=kept.device).unsqueeze(1)
    if labels is None:
        rows, kept_labels = kept // scores.shape[2], kept % scores.shape[2]
        parts = boxes[images, rows], scores[images, rows, kept_labels], kept_labels
    else:
        parts = boxes[images, kept], scores[images, kept], labels[images, kept]
    arrays = [to_host(part) for part in parts]
    return [Detections(*(array[image, :count] for array in arrays)) for image, count in enumerate(counts)]


class SuppressOverlaps:
    """Decodes the outputs of a detector: makes ``Candidates`` of the outputs, and then calls ``suppress``.

    Args:
        make: returns a function that maps the outputs of a batch to ``Candidates``. ``make`` is called when that
            function is first needed. The function's steps must not depend on values of tensors, so that torch can trace
            it.
    """

    def __init__(self, make: Callable[[], Callable[[tuple[Tensor, ...]], Candidates]]) -> None:
        self._make = make

    @cached_property
    def candidates(self) -> Callable[[tuple[Tensor, ...]], Candidates]:
        """The function that maps the outputs of a batch to ``Candidates``."""
        return self._make()

    def __call__(self, outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        """Returns the detections of each image of the batch."""
        return suppress(self.candidates(outputs), limits)


def unpack_candidates(outputs: tuple[Tensor, ...]) -> Candidates:
    """Returns the candidates of a network that decodes boxes itself.

    Args:
        outputs: the network's scores (N, n), boxes (N, n, 4) and labels int64 (N, n), for n boxes in each of N images.
    """
    scores, boxes, labels = outputs
    return Candidates(boxes, scores, labels)


suppress_all = SuppressOverlaps(lambda: unpack_candidates)
