"""What becomes of frames that were executed: delivered to their tenants, or dropped under a name, each once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.models.detections import Detections
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.serving.in_flight import InFlightBatch
from split_infer_ros.serving.model_instance import ModelInstance
from split_infer_ros.serving.tenant_state import TenantFrame, TenantState, drop
from split_infer_ros.telemetry.trace import TraceFile

Deliver = Callable[[str, Origin, Detections, Sequence[str]], None]


class ResultRouter:
    """Called by the heads of all models, each on threads of its own.

    Args:
        changed: guards all that is shared.
        members: tenants that run, by name.
        lines: models that are served, by key.
        deliver: the tenant's name, a frame's origin, its detections, and the labels of the model that found them.
        on_error: the tenant's name, and what ``deliver`` raised.
        trace: where each batch's times are written, if anywhere.
    """

    def __init__(
        self,
        changed: threading.Condition,
        members: Mapping[str, TenantState],
        lines: Mapping[str, ModelInstance],
        deliver: Deliver,
        on_error: Callable[[str, Exception], None],
        trace: TraceFile | None = None,
    ) -> None:
        self._changed = changed
        self._members = members
        self._lines = lines
        self._deliver_to = deliver
        self._on_error = on_error
        self._trace = trace
        self._batches = 0

    def deliver(self, flight: InFlightBatch, frame: TenantFrame, detections: Detections) -> None:
        """A frame's detections are there; its tenant gets them, if it is there and still wants that model's."""
        member, name = frame.member, frame.member.tenant.name
        with self._changed:
            if self._members.get(name) is not member or self._lines.get(member.model) is not flight.line:
                flight.open.remove(frame)
                frame.ticket.drop(DropReason.REMOVED)
                return
        failure: Exception | None = None
        try:
            self._deliver_to(name, frame.origin, detections, flight.line.model.entry.labels)
        except Exception as error:  # it costs this tenant's frame, and no other's
            failure = error
        now = time.monotonic()
        with self._changed:
            flight.open.remove(frame)
            if failure is None:
                frame.ticket.publish()
                member.meters.latency.add(now - frame.ticket.received_at, now)
            else:
                frame.ticket.drop(DropReason.HEAD_ERROR)
        if failure is not None:
            self._on_error(name, failure)

    def released(self, line: ModelInstance, lease: Lease, outcome: Outcome) -> None:
        """A batch is back; those of its frames that were not delivered are settled now."""
        now = time.monotonic()
        with self._changed:
            flight = line.out.get(lease)
            if flight is None:
                return
            if math.isnan(outcome.head_end):  # no head was at it
                self.give_up(flight, DropReason.named(outcome.reason))
                return
            times = flight.timeline
            times.head_start, times.head_end, times.delivered = outcome.head_start, outcome.head_end, outcome.delivered
            for member in flight.members:
                member.meters.busy.finish(lease, times, now)
                member.meters.batch_done(times, len(flight.frames), now)
            self.give_up(flight, DropReason.named(outcome.reason))
            self._batches += 1
            if self._trace is not None:
                # a row of its own for each slot, as several batches of a model may be in one stage side by side
                pool, slot = flight.plan.pool, lease.slot
                facts = {"frames": len(flight.frames), "split_point": flight.plan.split_point.name, "slot": slot}
                tenants = " ".join(member.tenant.name for member in flight.members)
                row = f"{line.key}, {pool.memory} {slot}: "
                self._trace.slices(times.slices(), f"batch {self._batches}", row, tenants=tenants, **facts)

    def give_up(self, flight: InFlightBatch, reason: DropReason) -> None:
        """The batch is over; frames that are not settled are dropped under that name (lock held)."""
        del flight.line.out[flight.lease]
        drop(flight.settle_rest(), reason)
        self._changed.notify_all()
