"""A loaded model that serves: its plan, its batches in flight, and what becomes of them.

A single pipeline has one instance. A server of many tenants has one for each model.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, Notice
from split_infer_ros.memory_cost.memory_choice import MemoryAdvisor
from split_infer_ros.runtime.faults import drop_reason
from split_infer_ros.runtime.shortage import summarize_error
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.frame import Frame, Handle
from split_infer_ros.server.guarded import guarded
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.plan_making import make_plan
from split_infer_ros.server.plans_in_use import PlansInUse
from split_infer_ros.server.report import ModelReport
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.timeline import Timeline
from split_infer_ros.server.transport import Transport
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.ring_memory import RingMemory


class ModelInstance:
    """Makes batches of frames, and accounts for each batch until a head gives it back.

    Args:
        key: the model's name in schedules and errors.
        model: the model with both partitions.
        transport: brings handles and features to the head.
        advisor: chooses the memory policy of a plan.
        changed: the condition that guards state shared with other threads. It is notified when a batch comes back or is
            dropped.
        on_error: called with every exception that cost frames, and with notices.
        watch: called with each batch that a head worked on, with its timeline complete and ``changed`` held. It must
            not wait.
        ring_memory: the ring for streamed weights that the model shares with others; None: it shares none.

    Attributes:
        key, advisor: the arguments.
        model: the model of which plans are made. The plan in force may run a rival of it; see ``make_plan``.
        connection: the open connection to the head.
        in_flight: the batches in flight, by lease.
        failure: why the last batch was lost; empty again once a later batch was handed over to a head.
        note_failure: called with each batch that could not be computed, and the reason; may be replaced.
        plans: the plans in use. ``use`` puts one in force.
        device_lost: set by whoever notices the loss of the device. From then on, batches fail as ``device_lost``.
    """

    def __init__(
        self,
        *,
        key: str,
        model: SplitModel,
        transport: Transport,
        advisor: MemoryAdvisor,
        changed: threading.Condition,
        on_error: Callable[[Exception], None],
        watch: Callable[[Batch], None],
        ring_memory: RingMemory | None = None,
    ) -> None:
        self.key = key
        self.model = model
        self.advisor = advisor
        self.in_flight: dict[Lease, Batch] = {}
        self.failure = ""
        self.note_failure: Callable[[Batch, str], object] = lambda batch, reason: None
        self.device_lost = False
        self._changed = changed
        self._report = guarded(on_error)
        self._watch = watch
        self._ring_memory = ring_memory
        self.plans = PlansInUse(changed, self._released)
        self.connection = transport.connect(self._released, lambda: self.collect(time.monotonic()))

    @property
    def plan(self) -> Plan:
        """The plan in force: new batches are computed with it. Call ``use`` first."""
        return self.plans.current

    def make_plan(self, settings: StageSettings, taken_bytes: float = 0.0, rival: SplitModel | None = None) -> Plan:
        """Makes a plan for these settings. ``use`` puts it in force.

        Args:
            settings: the settings of the plan.
            taken_bytes: the part of the memory budget that other models use.
            rival: what the plan runs instead of the model: the same network, perhaps on another engine. With the
                settings of the plan in force and features of the same types, the plan has the slots of that plan.

        Raises:
            ConfigurationError: the settings do not fit the model, or memory is short. Nothing was kept.
        """
        shares_slots = rival is not None and settings == self.plan.settings
        return make_plan(
            model=rival or self.model,
            settings=settings,
            connection=self.connection,
            pool=self.plan.pool if shares_slots else None,
            advisor=self.advisor,
            taken_bytes=taken_bytes,
            ring_memory=self._ring_memory,
        )

    def prepare_head(self, plan: Plan) -> None:
        """Has the head prepare its partition for a plan, so that the first batch need not wait.

        Raises:
            ConfigurationError: the head cannot run the partition.
        """
        name, size = plan.split_point.name, plan.settings.batch_size
        try:
            self.connection.prepare_head(self.model.entry.name, name, size)
        except ConfigurationError:
            raise
        except Exception as error:  # engines have errors of their own
            raise ConfigurationError(
                f"The head of {self.key} cannot run a batch of {size} behind {name} ({summarize_error(error)})."
            ) from error

    def use(self, plan: Plan) -> None:
        """Puts a plan in force for new batches. Batches in flight keep their plans. Call ``report_notes`` next."""
        self.plans.use(plan)
        self.advisor.note_in_use(
            plan.pool.layout, plan.pool.slots.policy, lambda: plan.model.kernels_before(plan.split_point.name)
        )

    def report_notes(self) -> None:
        """Reports as notices where the plan in force differs from its settings."""
        for note in self.plan.notes:
            self._report(Notice(note))

    def report(self) -> ModelReport:
        """Returns a report on the model and its memory."""
        plan = self.plan
        return ModelReport(
            model=self.model.entry.name,
            device=str(plan.model.device),
            engine=plan.model.engine_text,
            precision=plan.model.precision.value,
            split_point=plan.split_point.name,
            settings=plan.settings,
            slots_used=plan.pool.leases.used,
            pool_bytes=plan.pool.bytes,
            staging_bytes=plan.preprocessor.bytes,
            model_bytes=plan.model_bytes,
            memory=plan.pool.memory,
            memory_reason=plan.memory_reason,
            weights=plan.weights,
            failure=self.failure,
        )

    def start_batch(self, frames: Callable[[], Sequence[Frame]], now: float, plan: Plan | None = None) -> Batch | None:
        """Starts a batch, if a slot is free for it (lock held). Returns None if none is free.

        Args:
            frames: returns the batch's frames; called only if a slot is free.
            now: seconds of the steady clock.
            plan: the plan with which the batch is computed; None: the plan in force.
        """
        plan = plan or self.plan
        lease = plan.pool.acquire()
        if lease is None:
            return None
        batch = Batch(self, plan, lease, frames(), Timeline(closed=now))
        self.in_flight[lease] = batch
        return batch

    def hand_over(self, batch: Batch) -> None:
        """Lets heads read the slot, which now holds the features, and sends them the handle.

        If there is no head, the batch is dropped as ``no_head``.
        """
        plan, lease, frames = batch.plan, batch.lease, batch.frames
        origins = tuple(frame.origin for frame in frames)
        capacity, segment = plan.settings.batch_size, plan.pool.segment
        handle = Handle(lease, self.model.entry.name, plan.split_point.name, capacity, segment, origins, batch)
        if not self.device_lost:
            self.failure = ""
        plan.pool.publish(lease, time.monotonic())
        batch.mark_published()
        if not self.connection.send(handle, plan.pool):
            self.drop(batch, DropReason.NO_HEAD)
        batch.free_inputs()  # not earlier, because giving memory back takes longer than waking the head
        batch.leave_backbone()

    def fail(self, batch: Batch, error: Exception) -> None:
        """Reports why a batch could not be computed or handed over, and drops it unless a head has it already."""
        self.failure = str(error)
        self.note_failure(batch, self.failure)
        batch.leave_backbone()
        reason = DropReason.DEVICE_LOST if self.device_lost else drop_reason(error)
        self._report(error)  # first, so that whoever waits for the frames knows the cause once they are dropped
        self.drop(batch, reason)

    def drop(self, batch: Batch, reason: DropReason) -> None:
        """Drops the frames of a batch for a reason, unless a head has the batch already."""
        if batch.plan.pool.revoke(batch.lease):
            self._drop(batch, reason)

    def abandon(self, reason: DropReason) -> None:
        """Drops the frames of all batches in flight for a reason. If a head gives one back later, it does not count."""
        for batch in list(self.in_flight.values()):
            batch.plan.pool.revoke(batch.lease)
            self._drop(batch, reason)

    def collect(self, now: float) -> None:
        """Settles batches that no head of this process gave back, and closes earlier plans without batches in flight.

        Their leases have expired, or readers in other processes gave the slots back. The dispatcher calls this
        regularly. A transport calls it on any thread when such a reader gave a slot back.

        Args:
            now: seconds of the steady clock.
        """
        self.plans.collect(now)

    def close(self) -> None:
        """Frees all slots, and ends the connection to the head. Call it when no batch is in flight."""
        self.model.close()
        self.plans.close()
        self.connection.disconnect()

    def _released(self, lease: Lease, outcome: Outcome) -> None:
        """Settles the batch of a slot that a head gave back. It is called on the head's thread."""
        with self._changed:
            batch = self.in_flight.pop(lease, None)
            self._changed.notify_all()  # the slot is free, even if the batch was dropped meanwhile
            if batch is None or not batch.finish(outcome, time.monotonic()):
                return
            try:
                self._watch(batch)
            except Exception as error:  # a watcher's fault must not end the head's thread
                self._report(error)

    def _drop(self, batch: Batch, reason: DropReason) -> None:
        with self._changed:
            if self.in_flight.pop(batch.lease, None) is not None:
                batch.drop(reason)
                self._changed.notify_all()
