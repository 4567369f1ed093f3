"""A batch on its way, from the moment it is closed until a head is done with it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.engines.compute import Backbone, Features, Images, compute_into_slot
from split_infer_ros.preprocessing.loaded_batch import LoadedBatch
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.server.account import Account
from split_infer_ros.server.frame import Frame
from split_infer_ros.server.fusion_kind import FusionKind
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.timeline import Timeline


class BatchOwner(Protocol):
    """The model instance to which a batch belongs.

    Attributes:
        key: the model's name in schedules and errors.
    """

    key: str

    def hand_over(self, batch: Batch) -> None:
        """Lets heads read the batch's slot, and sends them the batch's handle."""

    def fail(self, batch: Batch, error: Exception) -> None:
        """Reports the error, and drops the batch unless a head has it already."""


@dataclass(slots=True, eq=False)
class Batch:
    """Frames of one model that share a slot.

    Attributes:
        owner: the model instance that made the batch.
        plan: the plan with which the batch is computed, even if the owner has a newer one meanwhile.
        lease: the lease of its slot.
        frames: the frames in the order of the batch dimension.
        timeline: when each step of the batch began or ended.
        unsettled: frames that are neither published nor dropped yet.
        accounts: the accounts of its frames, each once.
        loaded: the pre-processed images; None before ``load`` and after ``free_inputs``.
        features: the features that ``fetch`` will write into the slot; empty if the backbone writes them there itself.
        fusion: whether its execution also computes batches of other models, and how.
        num_lanes: how many batches may be computed side by side, this one included.
        is_contested: whether it ran while two plans took turns. Its times then tell nothing about drift.
        published: how many of its frames have results.
    """

    owner: BatchOwner
    plan: Plan
    lease: Lease
    frames: Sequence[Frame]
    timeline: Timeline
    unsettled: set[Frame] = field(init=False)
    accounts: Sequence[Account] = field(init=False)
    loaded: LoadedBatch | None = None
    features: Features = ()
    fusion: FusionKind = FusionKind.NONE
    num_lanes: int = 1
    is_contested: bool = False
    published: int = 0

    def __post_init__(self) -> None:
        self.unsettled = set(self.frames)
        self.accounts = list(dict.fromkeys(frame.account for frame in self.frames))

    def load(self) -> LoadedBatch:
        """Pre-processes the frames, keeps the result in ``loaded``, and returns it."""
        for account in self.accounts:
            account.meters.busy.enter(self.lease, self.timeline.closed)
        self.loaded = self.plan.load([frame.payload for frame in self.frames], self.lease)
        self.timeline.preprocessed = time.monotonic()
        return self.loaded

    @property
    def images(self) -> Images:
        """The pre-processed images, as the backbone takes them. They exist from ``load`` on."""
        assert self.loaded is not None
        return self.loaded.images

    @property
    def ready(self) -> Fence:
        """The fence after which ``images`` holds the pre-processed images."""
        assert self.loaded is not None
        return self.loaded.ready

    def run(self, stream: Stream, copies: Stream) -> Fence:
        """Launches the plan's backbone for this batch; returns the fence after which the features are in the slot.

        Args:
            stream: the stream on which the backbone runs.
            copies: the stream on which features are copied to the host, if they are copied.
        """
        assert self.loaded is not None
        return self.plan.run(self.loaded, self.lease, count=len(self.frames), stream=stream, copy_stream=copies)

    @property
    def maps(self) -> bool:
        """True if the device must map the slot's pages to write there (``managed``). It can compute meanwhile."""
        return self.plan.pool.slots.policy.maps_on_access

    def compute(self, backbone: Backbone, images: Images) -> None:
        """Runs the backbone on the calling thread. Then stores its features as ``write`` does."""
        if self.maps:
            self.features = backbone(images)
        else:
            compute_into_slot(backbone, images, self.plan.pool.slots, self.lease.slot)

    def write(self, features: Features) -> None:
        """Has the device write the features into the slot. If writing maps pages, ``fetch`` writes them later."""
        if self.maps:
            self.features = features
        else:
            self.plan.pool.slots.write(self.lease.slot, features)

    def fetch(self, copies: Stream) -> Fence | None:
        """Brings the features to where the CPU sees them. Meanwhile, the next batch can be computed.

        If ``maps``, the device writes the features into the slot. If the slot needs a copy, it copies them to the host.

        Args:
            copies: the stream for this work.

        Returns:
            The fence after which the CPU can see the features; None if it sees them already.
        """
        slots = self.plan.pool.slots
        if not (self.maps or slots.needs_copy):
            return None
        with inference_mode(), copies.work("copy"):
            if self.maps:
                slots.write(self.lease.slot, self.features)
            else:
                slots.fetch(self.lease.slot, len(self.frames))
        return copies.fence()

    def free_inputs(self) -> None:
        """Frees the pre-processed images and ``features``. Call it once the device has read them."""
        self.loaded, self.features = None, ()

    def mark_published(self) -> None:
        """Notes that a head can take the batch."""
        now = time.monotonic()
        for account in self.accounts:
            account.meters.busy.publish(self.lease, now)
        self.timeline.published = time.monotonic()  # last, because the hop to the head begins here

    def leave_backbone(self) -> None:
        """Notes that the backbone is done with the batch, because the batch was handed over to a head or lost."""
        now = time.monotonic()
        for account in self.accounts:
            account.meters.busy.leave(self.lease, self.timeline, now)

    def settle(self, frame: Frame, now: float, reason: DropReason | None = None) -> None:
        """Settles a frame as published at ``now``, or as dropped if there is a reason. Ignores settled frames."""
        if frame not in self.unsettled:
            return
        self.unsettled.remove(frame)
        if reason is None:
            frame.publish(now)
        else:
            frame.drop(reason)

    def finish(self, outcome: Outcome, now: float) -> bool:
        """Settles the remaining frames when the slot was given or taken back. Returns whether a head ran the batch.

        The meters are updated first. So a report that shows these frames as settled also contains their batch.

        Args:
            outcome: how many of the frames were published, and why the others were not.
            now: seconds of the steady clock.
        """
        was_at_head, self.published = not math.isnan(outcome.head_end), outcome.published
        if was_at_head:
            self._count(outcome, now)
        else:
            self._lose(now)
        for index, frame in enumerate(self.frames):
            if frame in self.unsettled:
                self.settle(frame, now, None if index < outcome.published else DropReason.named(outcome.reason))
        return was_at_head

    def drop(self, reason: DropReason) -> None:
        """Drops all unsettled frames of the batch for a reason, without waiting for a head."""
        now = time.monotonic()
        self._lose(now)
        for frame in list(self.unsettled):
            self.settle(frame, now, reason)

    def _count(self, outcome: Outcome, now: float) -> None:
        times = self.timeline
        times.head_start, times.head_end, times.delivered = outcome.head_start, outcome.head_end, outcome.delivered
        for account in self.accounts:
            account.meters.busy.finish(self.lease, times, now)
            account.meters.batch_done(times, frames=len(self.frames), fusion=self.fusion, now=now)
        for frame in self.frames:
            frame.account.meters.queueing.add(times.closed - frame.ticket.received_at, now)

    def _lose(self, now: float) -> None:
        for account in self.accounts:
            account.meters.busy.lose(self.lease, now)
