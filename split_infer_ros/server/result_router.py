"""Brings each result to its tenant, and settles the frame."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.models.detections import Detections
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.frame import Handle, Origin
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.tenant_state import TenantFrame, TenantState
from split_infer_ros.telemetry.trace import TraceFile

Deliver = Callable[[str, Origin, Detections, Sequence[str]], None]


class ResultRouter:
    """Brings the results of all models' heads to their tenants. Each head calls it on threads of its own.

    Args:
        changed: the condition that guards state shared with other threads.
        tenants: the tenants that run, by name.
        models: the models that are served, by key.
        deliver: called with the tenant's name, a frame's origin, its detections, and the labels of the model.
        on_error: called with the tenant's name and the exception that ``deliver`` raised.
        trace: the file to which each batch's times are written; None: no file.
        watch: called with each batch that a head gave back, once all its times are known. It must not wait.
    """

    def __init__(
        self,
        *,
        changed: threading.Condition,
        tenants: Mapping[str, TenantState],
        models: Mapping[str, ServedModel],
        deliver: Deliver,
        on_error: Callable[[str, Exception], None],
        trace: TraceFile | None = None,
        watch: Callable[[Batch], None] | None = None,
    ) -> None:
        self._watch_also = watch
        self._changed = changed
        self._tenants = tenants
        self._models = models
        self._deliver_to = deliver
        self._on_error = on_error
        self._trace = trace
        self._batches = 0

    def deliver(self, model: ServedModel, handle: Handle, index: int, detections: Detections) -> None:
        """Delivers one frame's detections, if its tenant still runs and still uses the model.

        Otherwise the frame is dropped as ``removed``.

        Args:
            model: the model that found the detections.
            handle: the handle of the frame's batch.
            index: the index of the frame in the batch.
            detections: the detections, in the source image's pixels.
        """
        batch = handle.batch
        assert batch is not None, "the head is in this process"
        frame = batch.frames[index]
        assert isinstance(frame, TenantFrame)
        tenant, name = frame.account, frame.account.tenant.name
        with self._changed:
            if frame not in batch.unsettled:  # the frame was dropped meanwhile
                return
            if self._tenants.get(name) is not tenant or self._models.get(tenant.model) is not model:
                batch.settle(frame, time.monotonic(), DropReason.REMOVED)
                return
        failure: Exception | None = None
        try:
            self._deliver_to(name, frame.origin, detections, model.instance.model.entry.labels)
        except Exception as error:  # it costs only this frame
            failure = error
        with self._changed:
            batch.settle(frame, time.monotonic(), None if failure is None else DropReason.HEAD_ERROR)
        if failure is not None:
            self._on_error(name, failure)

    def watch(self, model: ServedModel, batch: Batch) -> None:
        """Passes a batch that came back to the argument ``watch``, and writes its times into the trace."""
        self._batches += 1
        if self._watch_also is not None:
            self._watch_also(batch)
        if self._trace is None:
            return
        slot, row = batch.lease.slot, ""
        facts = {"frames": len(batch.frames), "split_point": batch.plan.split_point.name, "slot": slot}
        names = " ".join(account.tenant.name for account in batch.accounts if isinstance(account, TenantState))
        if names:  # each model's slot has its own row, because several batches may be in one stage at a time
            facts["tenants"] = names
            row = f"{model.key}, {batch.plan.pool.memory} {slot}: "
        self._trace.slices(batch.timeline.slices(), f"batch {self._batches}", row, **facts)
