"""The thread that batches frames, runs the backbone into a slot and sends the handle on."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import ImageError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.pipeline.batcher import Batcher
from split_infer_ros.pipeline.cores import use_all_cores
from split_infer_ros.pipeline.device import DeviceQueue
from split_infer_ros.pipeline.frame import Frame, Handle, Origin, Timeline
from split_infer_ros.pipeline.ledger import Ledger
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.pipeline.report import PipelineMeters, PipelineReport
from split_infer_ros.pipeline.settings import LATEST, StageSettings
from split_infer_ros.pipeline.transport import OwnedPool, Transport
from split_infer_ros.split.model import SplitModel

TICK_S = 0.25  # how often slots are looked after while nothing else happens


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Frames that share a slot, from the closing of the batch until a head is done with it."""

    pool: OwnedPool
    timeline: Timeline
    frames: list[Frame]


class BackboneStage:
    """Takes frames from any thread; sends each batch's handle on; keeps the ledger.

    Args:
        model: whose backbone runs.
        settings: the first ones.
        transport: the way to the head.
        on_error: told of every exception that cost frames.

    Raises:
        ConfigurationError: the settings do not fit the model, or their memory cannot be had.
    """

    def __init__(
        self,
        model: SplitModel,
        settings: StageSettings,
        transport: Transport,
        on_error: Callable[[Exception], None],
    ) -> None:
        self.ledger = Ledger()
        self._model = model
        self._transport = transport
        self._on_error = on_error
        self._device = DeviceQueue(model.device)
        self._meters = PipelineMeters()
        self._outstanding: dict[Lease, _Batch] = {}
        self._changed = threading.Condition()
        self._accepting = False
        self._running = False
        self._woken = False
        self._when_ready_for_more: Callable[[], None] | None = None
        self._retired: list[OwnedPool] = []
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
        """Warm up, then accept frames, until stop; may be started again."""
        self._plan.warm_up(self._model, self._device)
        self._accepting = self._running = True
        self._thread = threading.Thread(target=self._loop, name="backbone", daemon=True)
        self._thread.start()

    def submit(self, pixels: Pixels, origin: Origin, now: float) -> None:
        """A frame came in; never waits."""
        ticket = self.ledger.receive(now)
        with self._changed:
            if not self._accepting:
                ticket.drop("inactive")
                return
            displaced = self._batcher.add(Frame(pixels, origin, ticket), origin.source, now)
            for frame in displaced:
                frame.ticket.drop("overrun")
            self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait while ``full``, for senders that have a thread of their own; True once there is room."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.full or not self._accepting, timeout_s)

    def refuse(self, error: ImageError, now: float) -> None:
        """A frame came in that cannot be read."""
        self.ledger.receive(now).drop(error.reason)

    def configure(self, settings: StageSettings) -> None:
        """Change settings behind the stream: batches that are under way keep the old ones.

        Raises:
            ConfigurationError: they do not fit; the old ones stay in force.
        """
        plan = self._plan.with_settings(settings) or self._make_plan(settings)
        with self._changed:
            if plan.pool is not self._plan.pool:
                self._retired.append(self._plan.pool)
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
            batch = self._outstanding.pop(lease, None)
            if batch is None:  # stop() did not wait for it
                return
            now = time.monotonic()
            for index, frame in enumerate(batch.frames):
                if index < outcome.published:
                    frame.ticket.publish()
                    self._meters.latency.add(now - frame.ticket.received_at, now)
                else:
                    frame.ticket.drop(outcome.reason)
            if not math.isnan(outcome.head_end):  # no reader was at it
                batch.timeline.head_start, batch.timeline.head_end = outcome.head_start, outcome.head_end
                self._meters.batch_done(batch.timeline, len(batch.frames), now)
            self._changed.notify_all()

    def report(self, now: float) -> PipelineReport:
        """Counts and times at this moment."""
        plan = self._plan
        return self._meters.report(
            now,
            counts=self.ledger.counts(),
            model=self._model.entry.name,
            device=str(self._model.device),
            split_point=plan.halves.cut.name,
            settings=plan.settings,
            ring_used=plan.pool.ring.used,
            ring_bytes=plan.pool.bytes,
            memory=plan.pool.memory,
        )

    def stop(self, drain_s: float) -> None:
        """Accept no more, let what is in flight finish for up to ``drain_s`` seconds, drop the rest as ``shutdown``."""
        with self._changed:
            self._accepting = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running or not self.ledger.counts().in_flight, drain_s)
            self._running = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._collect()
        with self._changed:
            left = self._batcher.clear()
            for lease, batch in self._outstanding.items():
                batch.pool.give_up(lease)
                left += batch.frames
            self._outstanding.clear()
            for frame in left:
                frame.ticket.drop("shutdown")

    def close(self) -> None:
        """Free the slots; the stage is of no more use."""
        for pool in (*self._retired, self._plan.pool):
            pool.close()

    def _make_plan(self, settings: StageSettings) -> Plan:
        plan = Plan.make(self._model, settings, self._transport)
        plan.pool.ring.when_free(self.wake)
        return plan

    def _loop(self) -> None:
        if self._model.device.type == "cpu":
            use_all_cores()
        while self._running:
            self._collect()
            closed = self._next_batch()
            if closed is None:
                continue
            plan, lease, batch = closed
            try:
                self._tell_senders()
                self._run(plan, lease, batch)
            except Exception as error:  # whatever one batch does, the next one gets its chance
                self._give_up(lease, batch, "backbone_error")
                self._on_error(error)

    def _next_batch(self) -> tuple[Plan, Lease, _Batch] | None:
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
            lease = self._plan.pool.acquire()
            if lease is None:
                self._changed.wait(TICK_S)
                return None
            batch = _Batch(self._plan.pool, Timeline(closed=now), self._batcher.take())
            self._outstanding[lease] = batch
            return self._plan, lease, batch

    def _run(self, plan: Plan, lease: Lease, batch: _Batch) -> None:
        timeline = batch.timeline
        plan.compute(self._model, self._device, lease, [frame.pixels for frame in batch.frames])
        timeline.backbone_end = time.monotonic()
        origins = tuple(frame.origin for frame in batch.frames)
        handle = Handle(
            lease, self._model.entry.name, plan.halves.cut.name, plan.settings.batch_size, plan.pool.segment, origins
        )
        plan.pool.publish(lease, time.monotonic())
        timeline.published = time.monotonic()
        if not self._transport.send(handle, plan.pool):
            self._give_up(lease, batch, "no_head")

    def _collect(self) -> None:
        """Settle what comes back by itself: expired leases, and slots of readers in other processes."""
        with self._changed:
            pools = self._plan.pool, *self._retired
        for pool in pools:
            for lease, outcome in pool.collect(time.monotonic()):
                self.released(lease, outcome)
        with self._changed:
            done = [pool for pool in self._retired if not pool.ring.used]
            self._retired = [pool for pool in self._retired if pool.ring.used]
        for pool in done:
            pool.close()

    def _give_up(self, lease: Lease, batch: _Batch, reason: str) -> None:
        """Drop a batch under that name, unless a head has it already."""
        if batch.pool.give_up(lease):
            with self._changed:
                del self._outstanding[lease]
                for frame in batch.frames:
                    frame.ticket.drop(reason)
                self._changed.notify_all()

    def _tell_senders(self) -> None:
        self.wake()
        if self._when_ready_for_more is not None and not self.full:
            self._when_ready_for_more()
