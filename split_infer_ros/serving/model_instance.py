"""One model that is loaded: its slots and staging, and its head's partition on threads of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from split_infer_ros.buffers.policy import AUTO, Policy
from split_infer_ros.buffers.pool import find_pool
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import ConfigurationError, HandleError, Notice
from split_infer_ros.measurements.database import Database
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.task import Task, batch_task
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.pipeline.budget import check_weights
from split_infer_ros.pipeline.frame import Handle, Origin, Timeline
from split_infer_ros.pipeline.head_stage import HeadStage
from split_infer_ros.pipeline.local import LocalTransport
from split_infer_ros.pipeline.memory_choice import MemoryAdvisor
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.runtime.captures import empty_cache
from split_infer_ros.runtime.num_threads import default_head_threads
from split_infer_ros.runtime.shortage import summarize_error
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.serving.co_run_plans import CoRunPlans
from split_infer_ros.serving.in_flight import InFlightBatch
from split_infer_ros.serving.shared_settings import SharedSettings
from split_infer_ros.serving.tenant_state import TenantFrame
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.ring_memory import RingMemory


@dataclass(frozen=True)
class Callbacks:
    """Whom a line tells, on threads of its own.

    Attributes:
        deliver: a batch, a frame of it and its detections; must not raise.
        released: a line, a lease that came back and its outcome.
        wake: there may be a free slot.
        on_error: the model's name and an exception that cost frames.
    """

    deliver: Callable[[InFlightBatch, TenantFrame, Detections], None]
    released: Callable[[ModelInstance, Lease, Outcome], None]
    wake: Callable[[], None]
    on_error: Callable[[str, Exception], None]


class ModelInstance:
    """What one model needs to serve; tenants on it share it.

    Args:
        key: the name under which the engine and the scheduler know it.
        model: both of its partitions.
        settings: of its slots and staging.
        taken_bytes: of the memory budget, what other models have.
        limits: what post-processing keeps.
        callbacks: whom it tells.
        database: in which the machine's constants are kept.
        ring_memory: the ring through which all models' weights are read, unless they stay resident.

    Attributes:
        out: batches that are under way, by their leases; whoever uses it holds the pipeline's lock.
        ready: its costs are known; failed: it could not run even once, though it could be loaded.
        failure: why a batch of its was lost; empty again once one was executed.
        plan: by which batches go.
        beside: plans by other policies, for batches that run beside another model's (lock held).

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
        ring_memory: RingMemory | None = None,
    ) -> None:
        self.key = key
        self.model = model
        self.out: dict[Lease, InFlightBatch] = {}
        self.ready = self.failed = False
        self.failure = ""
        self.beside = CoRunPlans()
        self._callbacks = callbacks
        self._ring_memory = ring_memory
        self._retired: list[Plan] = []
        self._advisor = MemoryAdvisor(model.device, database)
        self._transport = LocalTransport(self._hand_to_head)
        self._transport.bind(self._released, callbacks.wake)
        threads = settings.head_threads or default_head_threads(model.device)
        self.head = HeadStage(model, limits, self._deliver, self._fail, threads)
        self._check_weights(settings.split_point)
        self.plan = self.make_plan(settings.stage, taken_bytes)
        self.use(self.plan)

    @property
    def budget_bytes(self) -> int:
        """What it has of the memory budget."""
        return sum(map(self.budget_of, self._plans))

    def budget_of(self, plan: Plan) -> int:
        """What it would have with that plan."""
        return plan.pool.bytes + plan.preprocessor.bytes

    def facts(self) -> dict[str, Any]:
        """What a report says of it, by the report's names."""
        plan, plans = self.plan, self._plans
        return {
            "model": self.model.entry.name,
            "device": str(self.model.device),
            "split_point": plan.split_point.name,
            "settings": plan.settings,
            "slots_used": sum(found.pool.leases.used for found in plans),
            "pool_bytes": sum(found.pool.bytes for found in plans),
            "staging_bytes": sum(found.preprocessor.bytes for found in plans),
            "memory": plan.pool.memory,
            "memory_reason": plan.memory_reason + self.beside.reason,
            "weights": plan.weights,
            "failure": self.failure,
            "left_out": dict(self.head.left_out),
        }

    def make_plan(self, settings: StageSettings, taken_bytes: float) -> Plan:
        """Slots and staging for these settings, tried with blank images.

        Raises:
            ConfigurationError: there is no memory for it, or the model cannot run; nothing was kept.
        """
        try:
            plan = Plan.make(self.model, settings, self._transport, self._advisor, taken_bytes, self._ring_memory)
            try:
                plan.warm_up(Stream(self.model.device), Stream(self.model.device))
            except Exception:
                plan.close()
                raise
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.key}: {error}") from error
        except Exception as error:
            raise ConfigurationError(
                f"{self.key} cannot run on {self.model.device} ({summarize_error(error)})."
            ) from error
        return plan

    def use(self, plan: Plan) -> None:
        """From now on batches go by that plan; those under way keep theirs."""
        if plan is not self.plan:
            self._retired.append(self.plan)
        self.plan = plan
        plan.pool.leases.when_free(self._callbacks.wake)
        self._advisor.took(plan.pool.layout, plan.pool.slots.policy)
        for note in plan.notes:
            self._callbacks.on_error(self.key, Notice(note))

    @property
    def co_runs(self) -> tuple[MachineConstants, Collection[Policy]] | None:
        """The machine's constants and legal policies, where a batch may have a policy that its neighbour calls for."""
        return self._advisor.known if self.plan.settings.memory_policy == AUTO else None

    def task(self, count: int, image_bytes: int, execution_s: float) -> Task:
        """What a batch does with memory."""
        layout = self.plan.pool.layout
        return batch_task(self.key, image_bytes, count * layout.slot_bytes // layout.batch_size, 1e3 * execution_s)

    def plan_by(self, policy: Policy) -> Plan | None:
        """The plan by that policy, if a slot of it is free; where there is none, one is wanted from now on."""
        plan = next((found for found in self._plans if found.pool.slots.policy is policy), None)
        if plan is None:
            self.beside.want(policy)
        return None if plan is None or plan.pool.leases.used == len(plan.pool.leases) else plan

    def make_beside(self, policy: Policy, taken_bytes: float) -> Plan | None:
        """A plan by another policy, or None if there is no memory for it."""
        try:
            plan = self.make_plan(replace(self.plan.settings, memory_policy=policy.value), taken_bytes)
        except ConfigurationError:
            return None
        if plan.pool.slots.policy is policy:
            return plan
        plan.close()
        return None

    def run_alone(self) -> None:
        """Have the usual plan alone, until others are wanted again (lock held)."""
        self._retired += self.beside.clear()

    @property
    def has_room(self) -> bool:
        """True while a slot is free."""
        return self.plan.pool.leases.used < len(self.plan.pool.leases)

    def take_off(self, frames: Sequence[TenantFrame], now: float, plan: Plan | None = None) -> InFlightBatch:
        """A batch gets its slot, of the usual plan if of no other; there is one."""
        lease = (plan := plan or self.plan).pool.acquire()
        assert lease is not None, f"{self.key} has no free slot, and was scheduled"
        self.out[lease] = flight = InFlightBatch(self, plan, lease, frames, Timeline(closed=now))
        return flight

    def hand_over(self, flight: InFlightBatch) -> None:
        """The features are in the slot: publish it and tell the head."""
        plan = flight.plan
        origins = tuple(replace(frame.origin, header=(flight, frame)) for frame in flight.frames)
        handle = Handle(
            flight.lease, self.model.entry.name, plan.split_point.name, plan.settings.batch_size, "", origins
        )
        flight.loaded, flight.features = None, ()  # not earlier: the device was reading them
        self.failure = ""
        plan.pool.publish(flight.lease, time.monotonic())
        flight.publish()
        self._transport.send(handle, plan.pool)

    def collect(self, now: float) -> None:
        """Settle what comes back by itself, and free what no batch is in any more."""
        for plan in (*self._plans, *self._retired):
            for lease, outcome in plan.pool.collect(now):
                self._released(lease, outcome)
        for plan in [plan for plan in self._retired if not plan.pool.leases.used]:
            self._retired.remove(plan)
            plan.close()

    def close(self) -> None:
        """Let go of everything, once no batch is under way."""
        self.head.stop()
        for plan in (*self._plans, *self._retired):
            plan.close()
        if self.model.device.type == "cuda":
            empty_cache()

    @property
    def _plans(self) -> list[Plan]:
        return [self.plan, *self.beside.plans.values()]

    def _check_weights(self, split_point: str) -> None:
        model = self.model
        if model.device.type == "cuda":
            empty_cache()  # what torch keeps of models that went is free as well
            free, _ = torch.cuda.mem_get_info(model.device)
            check_weights(self.key, model.parameters_before(split_point), model.dtype.itemsize, free)

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
