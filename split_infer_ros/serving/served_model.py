"""One model as tenants share it: its instance, its head, and whether it can be scheduled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from split_infer_ros.buffers.policy import AUTO, Policy
from split_infer_ros.errors import ConfigurationError, HandleError
from split_infer_ros.measurements.database import Database
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.task import Task, batch_task
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.pipeline.budget import check_weights
from split_infer_ros.pipeline.frame import Handle
from split_infer_ros.pipeline.head_stage import HeadStage
from split_infer_ros.pipeline.in_flight import InFlightBatch
from split_infer_ros.pipeline.local_transport import LocalTransport
from split_infer_ros.pipeline.memory_choice import MemoryAdvisor
from split_infer_ros.pipeline.model_instance import ModelInstance
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.runtime.captures import empty_cache
from split_infer_ros.runtime.num_threads import default_head_threads
from split_infer_ros.runtime.shortage import summarize_error
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.serving.co_run_plans import CoRunPlans
from split_infer_ros.serving.shared_settings import SharedSettings
from split_infer_ros.serving.tenant_state import TenantFrame
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.ring_memory import RingMemory


@dataclass(frozen=True)
class Callbacks:
    """Whom a served model tells, on threads of its own.

    Attributes:
        deliver: a model, a batch's handle, the index of a frame in it and its detections; must not raise.
        watch: a model and each batch that its head was at.
        on_error: the model's name and an exception that cost frames.
    """

    deliver: Callable[[ServedModel, Handle, int, Detections], None]
    watch: Callable[[ServedModel, InFlightBatch], None]
    on_error: Callable[[str, Exception], None]


class ServedModel:
    """A model that is loaded, with its head's threads; all tenants that want this model share it.

    Args:
        key: the name under which the scheduler knows it.
        model: both of its partitions.
        settings: of its slots and staging.
        limits: what post-processing keeps.
        changed: guards what is shared with other threads.
        callbacks: whom it tells.
        database: in which the machine's constants are kept.
        ring_memory: the ring through which all models' weights are read, unless they stay resident.

    Attributes:
        instance: its plan and its batches in flight.
        head: its head's threads.
        ready: its costs are known.
        failed: it could not run even once, though it could be loaded.
        co_run_plans: plans by other policies, for batches that run beside another model's (lock held).
    """

    def __init__(
        self,
        *,
        key: str,
        model: SplitModel,
        settings: SharedSettings,
        limits: Limits,
        changed: threading.Condition,
        callbacks: Callbacks,
        database: Database,
        ring_memory: RingMemory | None = None,
    ) -> None:
        self.key = key
        self.model = model
        self.ready = self.failed = False
        self.co_run_plans = CoRunPlans()
        self._callbacks = callbacks
        self.head = HeadStage.open(
            model,
            limits,
            deliver=self._deliver,
            on_error=self._report_head,
            num_threads=settings.head_threads or default_head_threads(model.device),
            batch_size=settings.max_batch_size,
            split_point=settings.split_point,
        )
        self.instance = ModelInstance(
            key=key,
            model=model,
            transport=LocalTransport(self.head.submit),
            advisor=MemoryAdvisor(model.device, database),
            changed=changed,
            on_error=self._report,
            watch=self._watch,
            ring_memory=ring_memory,
        )

    def open(self, settings: SharedSettings, taken_bytes: float) -> None:
        """Allocates slots and staging, and runs blank images.

        Args:
            settings: of slots and staging.
            taken_bytes: of the memory budget, what other models have.

        Raises:
            ConfigurationError: the settings do not fit the model, or it cannot run, or there is no memory for it.
        """
        self._check_weights(settings.split_point)
        self.instance.use(self.make_plan(settings.stage, taken_bytes))
        self.instance.report_notes()

    @property
    def plan(self) -> Plan:
        """The plan by which its batches are computed, unless they run beside another model's."""
        return self.instance.plan

    @property
    def in_flight(self) -> Collection[InFlightBatch]:
        """Its batches that are not back yet (lock held)."""
        return self.instance.in_flight.values()

    @property
    def budget_bytes(self) -> int:
        """What all its plans take of the memory budget."""
        return sum(map(self.budget_of, [self.plan, *self.co_run_plans.plans.values()]))

    def budget_of(self, plan: Plan) -> int:
        """What a plan takes of the memory budget."""
        return plan.pool.bytes + plan.preprocessor.bytes

    def facts(self) -> dict[str, Any]:
        """What a report says of it, by the report's names."""
        facts = self.instance.facts(list(self.co_run_plans.plans.values()))
        facts["memory_reason"] += self.co_run_plans.reason
        return {**facts, "left_out": dict(self.head.left_out)}

    def make_plan(self, settings: StageSettings, taken_bytes: float) -> Plan:
        """Makes slots and staging for these settings, and tries them with blank images.

        Raises:
            ConfigurationError: there is no memory for it, or the model cannot run; nothing was kept.
        """
        device = self.model.device
        try:
            plan = self.instance.make_plan(settings, taken_bytes)
            try:
                plan.warm_up(Stream(device), Stream(device))
            except Exception:
                plan.close()
                raise
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.key}: {error}") from error
        except Exception as error:
            raise ConfigurationError(f"{self.key} cannot run on {device} ({summarize_error(error)}).") from error
        return plan

    @property
    def co_runs(self) -> tuple[MachineConstants, Collection[Policy]] | None:
        """The machine's constants and legal policies, where a batch may have a policy that its neighbour calls for."""
        return self.instance.advisor.assignment_inputs if self.plan.settings.memory_policy == AUTO else None

    def task(self, count: int, image_bytes: int, execution_s: float) -> Task:
        """What a batch of ``count`` images does with memory."""
        layout = self.plan.pool.layout
        return batch_task(self.key, image_bytes, count * layout.slot_bytes // layout.batch_size, 1e3 * execution_s)

    def plan_by(self, policy: Policy) -> Plan | None:
        """The plan by that policy, if a slot of it is free; where there is none, one is wanted from now on."""
        plans = [self.plan, *self.co_run_plans.plans.values()]
        plan = next((found for found in plans if found.pool.slots.policy is policy), None)
        if plan is None:
            self.co_run_plans.want(policy)
        return plan if plan is not None and _has_room(plan) else None

    def make_co_run_plan(self, policy: Policy, taken_bytes: float) -> Plan | None:
        """Makes a plan by another policy; None if there is no memory for it."""
        try:
            plan = self.make_plan(replace(self.plan.settings, memory_policy=policy.value), taken_bytes)
        except ConfigurationError:
            return None
        if plan.pool.slots.policy is policy:
            return plan
        plan.close()
        return None

    def run_alone(self) -> None:
        """Gives up the plans for co-runs, until others are wanted again (lock held)."""
        self.instance.retire(self.co_run_plans.clear())

    @property
    def has_room(self) -> bool:
        """True while a slot is free."""
        return _has_room(self.plan)

    def take_off(self, frames: Sequence[TenantFrame], now: float, plan: Plan | None = None) -> InFlightBatch:
        """Gives a batch its slot, by that plan if not by the usual one (lock held); a slot is free."""
        batch = self.instance.open(lambda: frames, now, plan)
        assert batch is not None, f"{self.key} has no free slot, and was scheduled"
        return batch

    def collect(self, now: float) -> None:
        """Settles what comes back by itself, and frees plans that no batch needs any more."""
        self.instance.collect(now, list(self.co_run_plans.plans.values()))

    def close(self) -> None:
        """Frees everything, once no batch is in flight."""
        self.head.stop()
        for plan in self.co_run_plans.clear():
            plan.close()
        self.instance.close()
        if self.model.device.type == "cuda":
            empty_cache()

    def _check_weights(self, split_point: str) -> None:
        model = self.model
        if model.device.type == "cuda":
            empty_cache()  # what torch keeps of models that went is free as well
            free, _ = torch.cuda.mem_get_info(model.device)
            check_weights(
                self.key,
                parameters=model.parameters_before(split_point),
                item_bytes=model.dtype.itemsize,
                free_bytes=free,
            )

    def _deliver(self, handle: Handle, index: int, detections: Detections) -> None:
        self._callbacks.deliver(self, handle, index, detections)

    def _watch(self, batch: InFlightBatch) -> None:
        self._callbacks.watch(self, batch)

    def _report(self, error: Exception) -> None:
        self._callbacks.on_error(self.key, error)

    def _report_head(self, error: Exception) -> None:
        if not isinstance(error, HandleError):  # its batch was given up and settled before
            self._report(error)


def _has_room(plan: Plan) -> bool:
    return plan.pool.leases.used < len(plan.pool.leases)
