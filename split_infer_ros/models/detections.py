"""Detections of an image or a point cloud, and the limits that decide which are kept. This module needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from split_infer_ros.buffers.host_arrays import Flags, Floats, Integers, to_host
from split_infer_ros.setting import setting


@dataclass(frozen=True, slots=True)
class Limits:
    """Which detections post-processing keeps. Limits may change between two batches.

    A detector also drops a detection with a score that equals the threshold, like torchvision. A classifier keeps it.
    """

    PURPOSE: ClassVar[str] = "Detections"

    score_threshold: float = setting(0.5, "Detections with a lower score are not published.", minimum=0.0, maximum=1.0)
    nms_threshold: float = setting(
        0.5,
        "If two boxes of a class overlap by more than this (IoU), the one with the lower score is removed.",
        minimum=0.0,
        maximum=1.0,
    )
    max_detections: int = setting(
        100, "The most detections per image. Those with the best scores are kept.", minimum=1, maximum=1000
    )


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """The n objects found in one image or point cloud, the one with the best score first.

    Tensors may be given for all attributes, and become arrays. The array of a tensor on the CPU shares the tensor's
    memory. Tensors on a GPU are copied to the host.

    Attributes:
        boxes: float32 (n, 4), left, top, right, bottom in pixels. A decoder gives pixels of the model's input.
            ``ModelEntry.in_source`` converts them to pixels of the source image. For a point cloud, float32 (n, 6): the
            lowest x, y and z, then the highest, in metres.
        scores: float32 (n,), 0..1, descending.
        labels: int64 (n,), indices into the model's labels.
    """

    boxes: Floats
    scores: Floats
    labels: Integers

    def __post_init__(self) -> None:
        for name in ("boxes", "scores", "labels"):
            value = getattr(self, name)
            if not isinstance(value, np.ndarray) and hasattr(value, "numpy"):
                object.__setattr__(self, name, to_host(value))

    def __len__(self) -> int:
        return len(self.scores)

    def where(self, kept: Flags | Integers) -> Detections:
        """Returns some of these detections: those that flags (n,) mark, or those with the given indices, in order."""
        return Detections(self.boxes[kept], self.scores[kept], self.labels[kept])

    @classmethod
    def of_classes(cls, scores: Floats, labels: Integers, size: tuple[int, int], limits: Limits) -> Detections:
        """Returns the classes of an image as detections that cover the model's whole input.

        Unlike a detector's, a score that equals the threshold is kept.

        Args:
            scores: float32 (n,), the best first.
            labels: int64 (n,), the class of each score.
            size: height and width of the model's input in pixels.
            limits: ``score_threshold`` decides which classes are kept.
        """
        boxes = np.tile(np.array([0, 0, size[1], size[0]], np.float32), (len(scores), 1))
        return cls(boxes, scores, labels).where(scores >= limits.score_threshold)

    @classmethod
    def empty(cls) -> Detections:
        """Returns the detections of an image without objects."""
        return cls(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def lowest(boxes: Floats) -> Floats:
    """Returns where boxes (n, 2k) begin, (n, k): left and top, or the lowest x, y and z."""
    return boxes[:, : boxes.shape[1] // 2]


def highest(boxes: Floats) -> Floats:
    """Returns where boxes (n, 2k) end, (n, k): right and bottom, or the highest x, y and z."""
    return boxes[:, boxes.shape[1] // 2 :]
