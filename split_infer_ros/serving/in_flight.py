"""A batch on its way: its frames, its slot, and its features from the device to where its head sees them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from split_infer_ros.buffers.slots import Lease
from split_infer_ros.pipeline.frame import Timeline
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.pipeline.preprocessor import Loaded
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.serving.tenant_state import TenantFrame, TenantState

if TYPE_CHECKING:
    from split_infer_ros.serving.model_instance import ModelInstance


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """Frames of one model that share a slot, from the decision until a head is done with them.

    Attributes:
        open: those that are not settled yet.
        features: what the device computed, as long as it is not in the slot yet.
    """

    line: ModelInstance
    plan: Plan
    lease: Lease
    frames: Sequence[TenantFrame]
    timeline: Timeline
    open: set[TenantFrame] = field(init=False)
    loaded: Loaded | None = None
    features: Sequence[Tensor] = ()

    def __post_init__(self) -> None:
        self.open = set(self.frames)

    @property
    def members(self) -> Sequence[TenantState]:
        """The tenants of whom a frame is in the batch, each once."""
        return list(dict.fromkeys(frame.member for frame in self.frames))

    def settle_rest(self) -> set[TenantFrame]:
        """The batch is over; returns the frames that are not settled yet, which are to be settled now."""
        for member in self.members:
            member.meters.busy.lose(self.lease, time.monotonic())
        rest, self.open = self.open, set()
        return rest

    def load(self) -> Loaded:
        """Pre-process."""
        for member in self.members:
            member.meters.busy.enter(self.lease, time.monotonic())
        self.loaded = self.plan.preprocessor.load([frame.pixels for frame in self.frames])
        self.timeline.preprocessed = time.monotonic()
        return self.loaded

    def publish(self) -> None:
        """Note that the head can take the batch."""
        self.timeline.published = time.monotonic()
        for member in self.members:
            member.meters.busy.publish(self.lease, self.timeline.published)

    def leave_backbone(self) -> None:
        """Note that the backbone is done with the batch: it is handed over, or lost."""
        for member in self.members:
            member.meters.busy.leave(self.lease, self.timeline, time.monotonic())

    @property
    def maps(self) -> bool:
        """True where the slot's pages are mapped as it is written, in which time the device can compute."""
        return self.plan.pool.slots.policy.maps_on_access

    def leave(self, features: Sequence[Tensor]) -> None:
        """Have the device leave the features in the slot; if that maps pages, not before ``bring``."""
        if self.maps:
            self.features = features
        else:
            self.plan.pool.slots.write(self.lease.slot, features)

    def bring(self, copies: Stream) -> Fence | None:
        """Have them brought to where the CPU sees them, beside what is computed next; None if they are there."""
        slots = self.plan.pool.slots
        if not (self.maps or slots.needs_copy):
            return None
        with copies.work("copy"):
            if self.maps:
                slots.write(self.lease.slot, self.features)
            else:
                slots.fetch(self.lease.slot, len(self.frames))
        return copies.fence()
