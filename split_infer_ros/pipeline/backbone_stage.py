"""Frames in, handles out: batches frames, has the backbone run into a slot, and accounts for what became of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import ConfigurationError, ImageError, Notice, StreamError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.pipeline.backbone_runner import BackboneRunner, Batch
from split_infer_ros.pipeline.batch_accounts import BatchAccounts
from split_infer_ros.pipeline.batcher import Batcher
from split_infer_ros.pipeline.frame import Frame, Handle, Origin, Timeline
from split_infer_ros.pipeline.ledger import Ledger
from split_infer_ros.pipeline.memory_choice import MemoryAdvisor
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.pipeline.report import PipelineReport
from split_infer_ros.pipeline.settings import LATEST, StageSettings
from split_infer_ros.pipeline.transport import Transport
from split_infer_ros.runtime.faults import DEVICE_LOST, drop_reason, is_sticky
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.trace import TraceFile

TICK_S = 0.25  # how often slots are looked after while nothing else happens


class BackboneStage:
    """Takes frames from any thread; sends each batch's handle on; keeps the ledger.

    Args:
        model: whose backbone runs.
        settings: the first ones.
        transport: the way to the head.
        on_error: told of every exception that cost frames. After one for which ``faults.is_sticky`` is true, the stage
            takes no more frames and is only to be stopped.
        trace: where each batch's times are written, if anywhere.
        watch: called with each batch that a head was at, its timeline complete; must not wait.
        advisor: chooses the memory policy where the settings leave it open.
        threads: cores that the backbone's operations may use on a CPU; 0: all.

    Raises:
        ConfigurationError: the settings do not fit the model, or their memory cannot be had.
    """

    def __init__(
        self,
        model: SplitModel,
        settings: StageSettings,
        transport: Transport,
        on_error: Callable[[Exception], None],
        trace: TraceFile | None = None,
        watch: Callable[[Batch], None] | None = None,
        advisor: MemoryAdvisor | None = None,
        threads: int = 0,
    ) -> None:
        self.ledger = Ledger()
        self._model = model
        self._transport = transport
        self._advisor = advisor or MemoryAdvisor(model.device)
        self._on_error = on_error
        self._cores = threads
        self._runner = BackboneRunner(model.device, self._hand_over, self._fail, threads)
        self._ahead = 0  # batches that are closed and not handed over yet
        self._accounts = BatchAccounts(trace, watch)
        self._changed = threading.Condition()
        self._accepting = False
        self._running = False
        self._lost = False  # the device, and all frames with it
        self._woken = False
        self._when_ready_for_more: Callable[[], None] | None = None
        self._was_full = False
        self._failure = ""
        self._retired: list[Plan] = []
        transport.bind(self.released, self.wake)
        self._plan = self._make_plan(settings)
        self._batcher: Batcher[Frame] = Batcher(
            settings.batch_size, settings.batch_timeout_s, settings.drop_policy == LATEST
        )
        self._thread: threading.Thread | None = None

    @property
    def settings(self) -> StageSettings:
        """The settings in force."""
        return self._plan.settings

    @property
    def full(self) -> bool:
        """True while senders are asked to wait (drop_policy ``block``)."""
        return not self._batcher.keep_latest and self._batcher.full

    def when_ready_for_more(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` each time ``full`` ends."""
        self._when_ready_for_more = callback

    def start(self) -> None:
        """Warm up, then accept frames, until stop; may be started again.

        Raises:
            ConfigurationError: weights that are streamed cannot be read.
        """
        try:
            self._runner.start(self._plan)
        except StreamError as error:
            raise ConfigurationError(f"Weights cannot be streamed: {error}") from error
        self._accepting = self._running = True
        self._thread = threading.Thread(target=self._loop, name="preprocess", daemon=True)
        self._thread.start()

    def submit(self, pixels: Pixels, origin: Origin, now: float) -> None:
        """A frame came in; never waits."""
        ticket = self.ledger.receive(now)
        with self._changed:
            if not self._accepting:
                ticket.drop(DEVICE_LOST if self._lost else "inactive")
                return
            displaced = self._batcher.add(Frame(pixels, origin, ticket), origin.source, now)
            for frame in displaced:
                frame.ticket.drop("overrun")
            self._was_full = self.full
            self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait while ``full``, for senders that have a thread of their own; True once there is room."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.full or not self._accepting, timeout_s)

    def refuse(self, error: ImageError, now: float) -> None:
        """A frame came in that cannot be read."""
        self.ledger.receive(now).drop(error.reason)

    def missed(self, count: int, reason: str) -> None:
        """Frames were sent that never reached us."""
        self.ledger.missed(count, reason)

    def configure(self, settings: StageSettings) -> None:
        """Change settings behind the stream: batches that are under way keep the old ones.

        Raises:
            ConfigurationError: they do not fit; the old ones stay in force.
        """
        try:
            plan = self._plan.with_settings(settings) or self._make_plan(settings)
        except ConfigurationError as error:
            if is_sticky(error):
                self._lose(error)
            raise
        with self._changed:
            if plan.pool is not self._plan.pool:
                self._retired.append(self._plan)
            self._plan = plan
            displaced = self._batcher.configure(
                settings.batch_size, settings.batch_timeout_s, settings.drop_policy == LATEST
            )
            for frame in displaced:
                frame.ticket.drop("overrun")
        self._tell_senders()

    def wake(self) -> None:
        """There may be slots to look after; also what pools call when one becomes free."""
        with self._changed:
            self._woken = True  # remembered, should the thread not be waiting just now
            self._changed.notify_all()

    def released(self, lease: Lease, outcome: Outcome) -> None:
        """A head is done with a slot, which is free again (called on the head's thread)."""
        with self._changed:
            self._accounts.settle(lease, outcome, time.monotonic())
            self._changed.notify_all()

    def report(self, now: float) -> PipelineReport:
        """Counts and times at this moment."""
        plan = self._plan
        return self._accounts.meters.report(
            now,
            counts=self.ledger.counts(),
            model=self._model.entry.name,
            device=str(self._model.device),
            split_point=plan.split_point.name,
            settings=plan.settings,
            slots_used=plan.pool.leases.used,
            pool_bytes=plan.pool.bytes,
            staging_bytes=plan.preprocessor.bytes,
            memory=plan.pool.memory,
            memory_reason=plan.memory_reason,
            weights=plan.weights,
            failure=self._failure,
        )

    def stop(self, drain_s: float) -> None:
        """Accept no more, let what is in flight finish for up to ``drain_s`` seconds, drop the rest.

        The rest is dropped as ``shutdown``, or as ``device_lost`` where the device was lost.
        """
        reason = DEVICE_LOST if self._lost else "shutdown"
        with self._changed:
            self._accepting = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running or not self.ledger.counts().in_flight, drain_s)
            self._running = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._runner.stop()
        self._collect()
        with self._changed:
            for frame in self._batcher.clear():
                frame.ticket.drop(reason)
            self._accounts.drop_all(reason, time.monotonic())

    def close(self) -> None:
        """Free the slots; the stage is of no more use."""
        for plan in (*self._retired, self._plan):
            plan.close()

    def _make_plan(self, settings: StageSettings) -> Plan:
        plan = Plan.make(self._model, settings, self._transport, self._advisor, cores=self._cores)
        plan.pool.leases.when_free(self.wake)
        self._advisor.took(plan.pool.layout, plan.pool.slots.policy)
        for note in plan.notes:
            self._on_error(Notice(note))
        return plan

    def _loop(self) -> None:
        use_one_thread()
        while self._running:
            self._collect()
            batch = self._next_batch()
            if batch is not None:
                self._tell_senders()
                self._runner.run(batch)

    def _next_batch(self) -> Batch | None:
        """Wait for a batch that is due and a slot for it; None when there is reason to look round first."""
        with self._changed:
            if self._woken:
                self._woken = False
                return None
            now = time.monotonic()
            due = self._batcher.ready_at()
            if due is not None and not self._accepting:
                due = now  # draining: nothing more will come
            if due is None or due > now:
                self._changed.wait(TICK_S if due is None else min(due - now, TICK_S))
                return None
            # no batch is closed before its turn: meanwhile newer frames may come, or more of them
            lease = self._plan.pool.acquire() if self._ahead < self._runner.depth else None
            if lease is None:
                self._changed.wait(TICK_S)
                return None
            batch = Batch(self._plan, lease, self._batcher.take(), Timeline(closed=now))
            self._accounts.open(batch)
            self._ahead += 1
            return batch

    def _hand_over(self, batch: Batch) -> None:
        """The features are in the slot: publish it and tell the head."""
        plan, lease, timeline = batch.plan, batch.lease, batch.timeline
        origins = tuple(frame.origin for frame in batch.frames)
        handle = Handle(
            lease, self._model.entry.name, plan.split_point.name, plan.settings.batch_size, plan.pool.segment, origins
        )
        plan.pool.publish(lease, time.monotonic())
        timeline.published = time.monotonic()
        self._accounts.meters.busy.publish(lease, timeline.published)
        if not self._transport.send(handle, plan.pool):
            self._give_up(batch, "no_head")
        if not self._lost:
            self._failure = ""
        self._passed(batch)

    def _fail(self, batch: Batch, error: Exception) -> None:
        self._failure = str(error)
        self._give_up(batch, DEVICE_LOST if self._lost else drop_reason(error))
        self._passed(batch)
        if is_sticky(error):
            self._lose(error)
        elif not self._lost:  # else it only follows from the loss
            self._on_error(error)

    def _lose(self, error: Exception) -> None:
        """The device runs nothing more in this process: what waits is dropped, and no frame is taken any more.

        Batches that a head has are finished there. Those on their way through the backbone fail one by one.
        """
        with self._changed:
            if self._lost:
                return
            self._lost, self._accepting, self._failure = True, False, str(error)
            for frame in self._batcher.clear():
                frame.ticket.drop(DEVICE_LOST)
        self._tell_senders()
        self._on_error(error)

    def _passed(self, batch: Batch) -> None:
        with self._changed:
            self._accounts.passed(batch, time.monotonic())
            self._ahead -= 1
            self._changed.notify_all()

    def _collect(self) -> None:
        """Settle what comes back by itself: expired leases, and slots of readers in other processes."""
        with self._changed:
            plans = self._plan, *self._retired
        for plan in plans:
            for lease, outcome in plan.pool.collect(time.monotonic()):
                self.released(lease, outcome)
        with self._changed:
            done = [plan for plan in self._retired if not plan.pool.leases.used]
            self._retired = [plan for plan in self._retired if plan.pool.leases.used]
        for plan in done:
            plan.close()

    def _give_up(self, batch: Batch, reason: str) -> None:
        """Drop a batch under that name, unless a head has it already."""
        if batch.plan.pool.revoke(batch.lease):
            with self._changed:
                self._accounts.drop(batch.lease, reason, time.monotonic())
                self._changed.notify_all()

    def _tell_senders(self) -> None:
        """End their wait, if it is over; only then, as waking an executor costs it a millisecond or more."""
        self.wake()
        with self._changed:
            over = self._was_full and not self.full
            self._was_full = self.full
        if over and self._when_ready_for_more is not None:
            self._when_ready_for_more()
