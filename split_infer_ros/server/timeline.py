"""The times of a batch, from its closing until its results are published."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timeline:
    """When each step of a batch began or ended, in seconds of the steady clock (time.monotonic).

    Attributes:
        closed: when the batch got its frames and its slot.
        preprocessed: when the frames were pre-processed. On a GPU, that work may only be launched.
        backbone_start, backbone_end: when the backbone began, and when the features were in the slot.
        published: when a head could take the batch; 0 until then.
        head_start, head_end: when the head began with the batch, and when its outputs were there.
        delivered: when the detections were decoded and published.
    """

    closed: float = 0.0
    preprocessed: float = 0.0
    backbone_start: float = 0.0
    backbone_end: float = 0.0
    published: float = 0.0
    head_start: float = 0.0
    head_end: float = 0.0
    delivered: float = 0.0

    def slices(self) -> dict[str, tuple[float, float]]:
        """Returns the start and end of each step by name: ``preprocess``, ``backbone``, ``head``, ``postprocess``."""
        return {
            "preprocess": (self.closed, self.preprocessed),
            "backbone": (self.backbone_start, self.backbone_end),
            "head": (self.head_start, self.head_end),
            "postprocess": (self.head_end, self.delivered),
        }
