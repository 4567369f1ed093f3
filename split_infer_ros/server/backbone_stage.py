"""The backbone's side of a pipeline: frames in, handles out, and an account of every frame."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, ImageError, StreamError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.runtime.shortage import summarize_error
from split_infer_ros.server.account import Account
from split_infer_ros.server.backbone_runner import BackboneRunner, count_lanes
from split_infer_ros.server.frame import Frame, Origin
from split_infer_ros.server.frame_queue import FrameQueue
from split_infer_ros.server.in_flight import InFlightBatch
from split_infer_ros.server.ledger import Ledger
from split_infer_ros.server.memory.memory_choice import MemoryAdvisor
from split_infer_ros.server.model_instance import ModelInstance
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.report import PipelineReport
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.transport import Transport
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.trace import TraceFile

TICK_S = 0.25  # how often slots are looked after while nothing else happens


class BackboneStage:
    """Takes frames from any thread, sends each batch's handle on, and keeps the ledger.

    Args:
        model: whose backbone runs.
        settings: the first ones.
        transport: the way to the head.
        on_error: takes every exception that cost frames. After one for which ``faults.is_sticky`` is true, the stage
            takes no frame any more; stop it then.
        trace: where each batch's times are written, if anywhere.
        watch: takes each batch that a head gave back, its timeline complete; must not wait.
        advisor: chooses the memory policy if the settings leave it open.
        num_threads: of the backbone's operations on a CPU; 0: all.

    Raises:
        ConfigurationError: the settings do not fit the model, or their memory cannot be had.
    """

    def __init__(
        self,
        model: SplitModel,
        settings: StageSettings,
        transport: Transport,
        on_error: Callable[[Exception], None],
        *,
        trace: TraceFile | None = None,
        watch: Callable[[InFlightBatch], None] | None = None,
        advisor: MemoryAdvisor | None = None,
        num_threads: int = 0,
    ) -> None:
        self._account = Account()
        self._on_error = on_error
        self._trace = trace
        self._watch_also = watch
        self._changed = threading.Condition()
        self._running = self._is_closed = False
        self._thread: threading.Thread | None = None
        self._runner = BackboneRunner(
            model.device,
            self._changed,
            num_threads=num_threads,
            engine=model.execution_config.engine,
            num_lanes=count_lanes(model, num_threads),
        )
        self._instance = ModelInstance(
            key=model.entry.name,
            model=model,
            transport=transport,
            advisor=advisor or MemoryAdvisor(model.device),
            changed=self._changed,
            on_error=self._failed,
            watch=self._watch,
            num_threads=num_threads,
        )
        self._instance.use(self._instance.make_plan(settings))
        self._instance.report_notes()
        self._queue = FrameQueue(settings, self._changed)

    @property
    def ledger(self) -> Ledger:
        """Counts what became of every frame that came in."""
        return self._account.ledger

    @property
    def settings(self) -> StageSettings:
        """The settings in force."""
        return self._instance.plan.settings

    @property
    def full(self) -> bool:
        """True while senders are asked to wait (drop_policy ``block``)."""
        return self._queue.full

    def start(self) -> None:
        """Warms up, then accepts frames, until ``stop``; may be started again.

        Raises:
            ConfigurationError: weights that are streamed cannot be read, or the head cannot run its partition.
        """
        self._instance.prepare_head(self._instance.plan)
        try:
            self._runner.start(self._instance.plan)
        except StreamError as error:
            raise ConfigurationError(f"Weights cannot be streamed: {error}") from error
        self._queue.is_open = self._running = True
        self._thread = threading.Thread(target=self._loop, name="backbone", daemon=True)
        self._thread.start()

    def submit(self, pixels: Pixels, origin: Origin, now: float) -> None:
        """Takes a frame; never waits."""
        ticket = self.ledger.receive(now)
        with self._changed:
            if self._queue.is_open:
                self._queue.add(Frame(pixels, origin, ticket, self._account), now)
            else:
                ticket.drop(DropReason.DEVICE_LOST if self._instance.device_lost else DropReason.INACTIVE)

    def wait_for_room(self, timeout_s: float) -> bool:
        """Waits while ``full``, on a thread of the sender; returns whether there is room."""
        return self._queue.wait_for_room(timeout_s)

    def refuse(self, error: ImageError, now: float) -> None:
        """Counts a frame that cannot be read."""
        self.ledger.receive(now).drop(error.reason)

    def missed(self, count: int, reason: DropReason) -> None:
        """Counts frames that were sent and never arrived."""
        self.ledger.missed(count, reason)

    def configure(self, settings: StageSettings) -> None:
        """Changes settings for new batches; batches in flight keep the old ones.

        Where an engine compiles the partitions, it does so first, while batches run by the old settings. That can take
        seconds.

        Raises:
            ConfigurationError: they do not fit; the old ones stay in force.
        """
        before = self._instance.plan
        try:
            plan = before.with_settings(settings) or self._make_ready_plan(settings)
        except Exception as error:
            if is_sticky(error):
                self._lose(error)
            raise
        with self._changed:
            if self._is_closed:
                plan.close()
                return
            self._instance.use(plan)
            self._queue.configure(settings)
        self._queue.tell_senders()
        if plan.pool is not before.pool:
            self._instance.report_notes()

    def report(self, now: float) -> PipelineReport:
        """Reports counts and times at this moment."""
        return self._account.meters.report(now, counts=self.ledger.counts(), **self._instance.facts())

    def stop(self, drain_s: float) -> None:
        """Accepts no more frames, lets those in flight finish for up to ``drain_s`` seconds, and drops the rest.

        The rest is dropped as ``shutdown``, or as ``device_lost`` where the device was lost.
        """
        reason = DropReason.DEVICE_LOST if self._instance.device_lost else DropReason.SHUTDOWN
        with self._changed:
            self._queue.is_open = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running or not self.ledger.counts().in_flight, drain_s)
            self._running = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._runner.stop()
        self._instance.collect(time.monotonic())
        with self._changed:
            self._queue.clear(reason)
            self._instance.abandon(reason)

    def close(self) -> None:
        """Frees the slots; the stage cannot be used any more."""
        with self._changed:
            self._is_closed = True
        self._instance.close()

    def _make_ready_plan(self, settings: StageSettings) -> Plan:
        """Makes a plan. While frames flow, both partitions are compiled for it, unless they are those in force."""
        before, plan = self._instance.plan, self._instance.make_plan(settings)
        has_new_parts = plan.split_point != before.split_point or settings.batch_size != before.settings.batch_size
        if not (self._running and has_new_parts):
            return plan
        try:
            self._instance.prepare_head(plan)
            self._runner.warm_up(plan)
        except Exception as error:
            plan.close()
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(
                f"{self._instance.key} cannot run a batch of {settings.batch_size} up to {plan.split_point.name} "
                f"({summarize_error(error)})."
            ) from error
        return plan

    def _loop(self) -> None:
        self._runner.set_up()
        while self._running:
            try:
                self._take_turn()
            except Exception as error:  # whatever it was, no other thread could serve the frames
                self._failed(error)
                with self._changed:
                    self._changed.wait(TICK_S)

    def _take_turn(self) -> None:
        self._instance.collect(time.monotonic())
        batch = self._next_batch()
        if batch is not None:
            self._queue.tell_senders()
            self._runner.run(batch)

    def _next_batch(self) -> InFlightBatch | None:
        """Waits for a batch that is due and a slot for it; None after each wake-up without one."""
        with self._changed:
            if not self._running:
                return None
            now = time.monotonic()
            due = self._queue.due_at(now)
            if due is None or due > now:
                self._changed.wait(TICK_S if due is None else min(due - now, TICK_S))
                return None
            # No batch is closed before its turn: meanwhile newer frames may come, or more of them.
            has_room = self._runner.has_room(self._instance.plan)
            batch = self._instance.open(self._queue.take, now) if has_room else None
            if batch is None:
                self._changed.wait(TICK_S)
            return batch

    def _watch(self, batch: InFlightBatch) -> None:
        if self._trace is not None:
            self._trace.slices(
                batch.timeline.slices(),
                f"batch {self._account.meters.batches}",
                frames=len(batch.frames),
                split_point=batch.plan.split_point.name,
                slot=batch.lease.slot,
            )
        if self._watch_also is not None:
            self._watch_also(batch)

    def _failed(self, error: Exception) -> None:
        if is_sticky(error):
            self._lose(error)
        elif not self._instance.device_lost:  # otherwise the error only follows from the loss
            self._on_error(error)

    def _lose(self, error: Exception) -> None:
        """Drops all frames that wait and takes none any more, because the device runs nothing in this process any more.

        Batches that a head has are finished there. Those in the backbone fail one by one.
        """
        with self._changed:
            if self._instance.device_lost:
                return
            self._instance.device_lost, self._queue.is_open, self._instance.failure = True, False, str(error)
            self._queue.clear(DropReason.DEVICE_LOST)
        self._queue.tell_senders()
        self._on_error(error)
