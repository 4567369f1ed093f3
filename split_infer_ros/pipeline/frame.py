"""A frame on its way, a batch's times, and the handle that travels in its stead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from split_infer_ros.buffers.slots import Lease
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.pipeline.ledger import Ticket


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What of a frame goes along to its result.

    Attributes:
        header: the source message's header, repeated untouched.
        source: which camera it came from.
        height, width: of the source image, in pixels.
        pixels: the source image itself, for pictures of results; None where the head is elsewhere.
    """

    header: Any
    source: str
    height: int
    width: int
    pixels: Pixels | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One image that was received and is not yet settled."""

    pixels: Pixels
    origin: Origin
    ticket: Ticket


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
        """Start and end of the batch's time in each stage, in order."""
        return {
            "preprocess": (self.closed, self.preprocessed),
            "backbone": (self.backbone_start, self.backbone_end),
            "head": (self.head_start, self.head_end),
            "postprocess": (self.head_end, self.delivered),
        }


@dataclass(frozen=True, slots=True)
class Handle:
    """A batch of features, by reference: which slot they lie in and whose images they are of.

    Attributes:
        lease: pool, slot and generation.
        model, split_point: which head can continue.
        batch_capacity: the largest batch a slot is laid out for.
        segment: name of the shared memory in which the slot lies; empty if in the backbone's own.
        origins: one a frame, in the order of the batch dimension.
    """

    lease: Lease
    model: str
    split_point: str
    batch_capacity: int
    segment: str
    origins: tuple[Origin, ...]
