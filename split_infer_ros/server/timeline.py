"""The times at which a batch passed each station on its way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Timeline:
    """When a batch passed each station, in seconds of the steady clock (time.monotonic)."""

    closed: float = 0.0
    preprocessed: float = 0.0
    backbone_start: float = 0.0
    backbone_end: float = 0.0
    published: float = 0.0
    head_start: float = 0.0
    head_end: float = 0.0
    delivered: float = 0.0

    def slices(self) -> dict[str, tuple[float, float]]:
        """Returns the start and end of the batch's time in each stage, in order."""
        return {
            "preprocess": (self.closed, self.preprocessed),
            "backbone": (self.backbone_start, self.backbone_end),
            "head": (self.head_start, self.head_end),
            "postprocess": (self.head_end, self.delivered),
        }
