"""One model that is loaded: its slots and staging, and its head's half on threads of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from split_infer_ros.buffers.pool import find_pool
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import ConfigurationError, HandleError
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.pipeline.budget import bytes_needed, check_weights
from split_infer_ros.pipeline.cores import default_head_threads
from split_infer_ros.pipeline.device import DeviceQueue, Mark
from split_infer_ros.pipeline.frame import Handle, Origin, Timeline
from split_infer_ros.pipeline.head_stage import HeadStage
from split_infer_ros.pipeline.intake import Loaded
from split_infer_ros.pipeline.local import LocalTransport
from split_infer_ros.pipeline.memory_choice import MemoryAdvisor
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.split.model import SplitModel
from split_infer_ros.tenancy.member import TenantFrame
from split_infer_ros.tenancy.shared_settings import SharedSettings
from split_infer_ros.tuning.database import Database


@dataclass(frozen=True)
class Callbacks:
    """Whom a line tells, on threads of its own.

    Attributes:
        deliver: a batch, a frame of it and its detections; must not raise.
        released: a line, a lease that came back and its outcome.
        wake: there may be a free slot.
        on_error: the model's name and an exception that cost frames.
    """

    deliver: Callable[[Flight, TenantFrame, Detections], None]
    released: Callable[[ModelLine, Lease, Outcome], None]
    wake: Callable[[], None]
    on_error: Callable[[str, Exception], None]


@dataclass(slots=True, eq=False)
class Flight:
    """Frames of one model that share a slot, from the decision until a head is done with them.

    Attributes:
        open: those that are not settled yet.
    """

    line: ModelLine
    plan: Plan
    lease: Lease
    frames: Sequence[TenantFrame]
    timeline: Timeline
    open: set[TenantFrame] = field(init=False)
    loaded: Loaded | None = None

    def __post_init__(self) -> None:
        self.open = set(self.frames)

    def settle_rest(self) -> set[TenantFrame]:
        """Those that are not settled yet, which are to be settled now."""
        rest, self.open = self.open, set()
        return rest

    def load(self) -> Loaded:
        """Pre-process."""
        self.loaded = self.plan.intake.load([frame.pixels for frame in self.frames])
        self.timeline.preprocessed = time.monotonic()
        return self.loaded

    def write(self, features: Sequence[Tensor]) -> None:
        """Have the device leave the features in the slot."""
        self.plan.pool.slots.write(self.lease.slot, features)

    def fetch(self, copies: DeviceQueue) -> Mark:
        """Have what was written copied to where the CPU sees it, if that is elsewhere."""
        with copies.work("copy"):
            self.plan.pool.slots.fetch(self.lease.slot, len(self.frames))
        return copies.mark()


class ModelLine:
    """What one model needs to serve; tenants on it share it.

    Args:
        key: the name under which the engine and the scheduler know it.
        model: both of its halves.
        settings: of its slots and staging.
        taken_bytes: of the memory budget, what other models have.
        limits: what post-processing keeps.
        callbacks: whom it tells.
        database: in which the machine's constants are kept.

    Attributes:
        out: batches that are under way, by their leases; whoever uses it holds the pipeline's lock.
        ready: its costs are known, and so it may be scheduled.
        failed: it could not run even once, though it could be loaded.

    Raises:
        ConfigurationError: the settings do not fit the model, or it cannot run, or there is no memory for it.
    """

    def __init__(
        self,
        key: str,
        model: SplitModel,
        settings: SharedSettings,
        taken_bytes: float,
        limits: Limits,
        callbacks: Callbacks,
        database: Database,
    ) -> None:
        self.key = key
        self.model = model
        self.out: dict[Lease, Flight] = {}
        self.ready = self.failed = False
        self._callbacks = callbacks
        self._retired: list[Plan] = []
        self._advisor = MemoryAdvisor(model.device, database)
        self._transport = LocalTransport(self._hand_to_head)
        self._transport.bind(self._released, callbacks.wake)
        threads = settings.head_threads or default_head_threads()
        self.head = HeadStage(model, limits, self._deliver, self._fail, threads)
        self._check_weights()
        self.plan = self.make_plan(settings, taken_bytes)
        self.use(self.plan)

    @property
    def budget_bytes(self) -> int:
        """What it has of the memory budget."""
        return self.budget_of(self.plan)

    def budget_of(self, plan: Plan) -> int:
        """What it would have with that plan."""
        staging = self.model.entry.preprocess.staging(1).nbytes
        return bytes_needed(plan.settings, plan.cut, plan.pool.slots.policy, staging)

    def facts(self) -> dict[str, Any]:
        """What a report says of it, by the report's names."""
        plan = self.plan
        return {
            "model": self.model.entry.name,
            "device": str(self.model.device),
            "split_point": plan.cut.name,
            "settings": plan.settings,
            "ring_used": plan.pool.ring.used,
            "ring_bytes": plan.pool.bytes,
            "staging_bytes": plan.intake.bytes,
            "memory": plan.pool.memory,
            "memory_reason": plan.memory_reason,
        }

    def make_plan(self, settings: SharedSettings, taken_bytes: float) -> Plan:
        """Slots and staging for these settings, tried with blank images.

        Raises:
            ConfigurationError: there is no memory for it, or the model cannot run; nothing was kept.
        """
        try:
            plan = Plan.make(self.model, settings.stage, self._transport, self._advisor, taken_bytes)
            try:
                plan.warm_up(DeviceQueue(self.model.device), DeviceQueue(self.model.device))
            except Exception:
                plan.pool.close()
                raise
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.key}: {error}") from error
        except Exception as error:
            raise ConfigurationError(f"{self.key} cannot run on {self.model.device} ({error}).") from error
        return plan

    def use(self, plan: Plan) -> None:
        """From now on batches go by that plan; those under way keep theirs."""
        if plan is not self.plan:
            self._retired.append(self.plan)
        self.plan = plan
        plan.pool.ring.when_free(self._callbacks.wake)
        self._advisor.took(plan.pool.layout, plan.pool.slots.policy)
        if plan.pool.slots.note:
            self._callbacks.on_error(self.key, ConfigurationError(plan.pool.slots.note))

    @property
    def has_room(self) -> bool:
        """True while a slot is free."""
        return self.plan.pool.ring.used < len(self.plan.pool.ring)

    def take_off(self, frames: Sequence[TenantFrame], now: float) -> Flight:
        """A batch gets its slot; there is one."""
        lease = self.plan.pool.acquire()
        assert lease is not None, f"{self.key} has no free slot, and was scheduled"
        self.out[lease] = flight = Flight(self, self.plan, lease, frames, Timeline(closed=now))
        return flight

    def hand_over(self, flight: Flight) -> None:
        """The features are in the slot: publish it and tell the head."""
        plan = flight.plan
        origins = tuple(replace(frame.origin, header=(flight, frame)) for frame in flight.frames)
        handle = Handle(flight.lease, self.model.entry.name, plan.cut.name, plan.settings.batch_size, "", origins)
        flight.loaded = None  # not earlier: the device was reading it
        plan.pool.publish(flight.lease, time.monotonic())
        flight.timeline.published = time.monotonic()
        self._transport.send(handle, plan.pool)

    def collect(self, now: float) -> None:
        """Settle what comes back by itself, and free what no batch is in any more."""
        for plan in (self.plan, *self._retired):
            for lease, outcome in plan.pool.collect(now):
                self._released(lease, outcome)
        for plan in [plan for plan in self._retired if not plan.pool.ring.used]:
            self._retired.remove(plan)
            plan.pool.close()

    def close(self) -> None:
        """Let go of everything, once no batch is under way."""
        self.head.stop()
        for plan in (self.plan, *self._retired):
            plan.pool.close()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _check_weights(self) -> None:
        model = self.model
        if model.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(model.device)
            check_weights(self.key, model.parameters, model.dtype.itemsize, free)

    def _hand_to_head(self, handle: Handle) -> int:
        self.head.submit(handle, find_pool(handle.lease))
        return 1

    def _deliver(self, origin: Origin, detections: Detections) -> None:
        flight, frame = origin.header
        self._callbacks.deliver(flight, frame, detections)

    def _released(self, lease: Lease, outcome: Outcome) -> None:
        self._callbacks.released(self, lease, outcome)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, HandleError):  # its batch was given up and settled before
            self._callbacks.on_error(self.key, error)
