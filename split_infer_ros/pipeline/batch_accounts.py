"""Which batches are out, and what became of those that came back."""

from __future__ import annotations

import math
from collections.abc import Callable

from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.pipeline.backbone_runner import Batch
from split_infer_ros.pipeline.report import PipelineMeters
from split_infer_ros.telemetry.trace import TraceFile


class BatchAccounts:
    """Settles the frames of each batch once; whoever calls holds a lock.

    Args:
        trace: where each batch's times are written, if anywhere.
        watch: called with each batch that a head was at, its timeline complete; must not wait.

    Attributes:
        meters: times of batches that came back.
    """

    def __init__(self, trace: TraceFile | None, watch: Callable[[Batch], None] | None) -> None:
        self.meters = PipelineMeters()
        self._trace = trace
        self._watch = watch
        self._out: dict[Lease, Batch] = {}

    def open(self, batch: Batch) -> None:
        """A batch was closed, and has its slot."""
        self._out[batch.lease] = batch
        self.meters.busy.enter(batch.lease, batch.timeline.closed)

    def passed(self, batch: Batch, now: float) -> None:
        """A batch was handed over, or failed on its way."""
        self.meters.busy.leave(batch.lease, batch.timeline, now)

    def settle(self, lease: Lease, outcome: Outcome, now: float) -> None:
        """A batch came back; one that was dropped meanwhile is settled already."""
        batch = self._out.pop(lease, None)
        if batch is None:
            return
        for index, frame in enumerate(batch.frames):
            if index < outcome.published:
                frame.ticket.publish()
                self.meters.latency.add(now - frame.ticket.received_at, now)
            else:
                frame.ticket.drop(outcome.reason)
        if math.isnan(outcome.head_end):  # no reader was at it
            self.meters.busy.lose(lease, now)
            return
        times = batch.timeline
        times.head_start, times.head_end, times.delivered = outcome.head_start, outcome.head_end, outcome.delivered
        self.meters.busy.finish(lease, times, now)
        self.meters.batch_done(times, len(batch.frames), now)
        if self._trace is not None:
            name, split_point = f"batch {self.meters.batches}", batch.plan.split_point.name
            self._trace.slices(times.slices(), name, frames=len(batch.frames), split_point=split_point, slot=lease.slot)
        if self._watch is not None:
            self._watch(batch)

    def drop(self, lease: Lease, reason: str, now: float) -> None:
        """A batch will not come back."""
        self.meters.busy.lose(lease, now)
        for frame in self._out.pop(lease).frames:
            frame.ticket.drop(reason)

    def drop_all(self, reason: str, now: float) -> None:
        """No batch will come back; their slots are given up."""
        for lease, batch in list(self._out.items()):
            batch.plan.pool.revoke(lease)
            self.drop(lease, reason, now)
