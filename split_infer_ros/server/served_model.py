"""A model that tenants share: its instance, its head, and whether it can be scheduled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from split_infer_ros.buffers.pool_allocators import POOLED
from split_infer_ros.engines.compute import Backbone
from split_infer_ros.engines.cuda.model_memory import PooledBackbone
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.errors import HandleError
from split_infer_ros.memory_cost.memory_choice import MemoryAdvisor
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.takes import Takes
from split_infer_ros.runtime.captures import empty_cache
from split_infer_ros.runtime.cores import Cores
from split_infer_ros.runtime.num_threads import default_head_threads
from split_infer_ros.server.auto_split import AutoSplit
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.callbacks import Callbacks
from split_infer_ros.server.co_runs import CoRuns
from split_infer_ros.server.frame import Payload
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.lane_use import LaneUse
from split_infer_ros.server.local_transport import LocalTransport
from split_infer_ros.server.memory.tried_plan import check_room_for_weights, make_tried_plan
from split_infer_ros.server.model_instance import ModelInstance
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.report import ModelReport
from split_infer_ros.server.schedule.flow import Flow
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant_state import TenantFrame
from split_infer_ros.server.warm_up import WarmUp
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.ring_memory import RingMemory
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

HEAD_S = 2.0  # a thread of a head that takes longer to end is left alone: a user's decoder may hang


class ServedModel:
    """A loaded model that serves, with the threads of its head if the server runs the head.

    Tenants whose ``Tenant.model_key`` is ``key`` share it.

    Args:
        key: the name under which the scheduler knows the model.
        opened: the model, how it should run, and the transport to its head.
        split: chooses and moves the split point.
        settings: the settings of the server. ``split_point`` names a split point.
        limits: the limits of post-processing.
        changed: the condition that guards state shared with other threads.
        callbacks: the functions that the model calls.
        advisor: chooses the memory policy of a plan.
        num_lanes: the server's number of lanes; 0: none.
        ring_memory: the ring through which the weights of all models are streamed; None: they stay in memory.

    Attributes:
        key, split: the arguments.
        instance: the model's plan and its batches in flight.
        head: the head's stage; None if the head is elsewhere.
        lanes: decides whether the model's batches may use lanes.
        improvement: what was tried while the model served, what that gained, and whether the search goes on.
        heat: what the processors' temperature is, and what that changes; empty if it has no bound.
        undone: why another precision was taken back; empty if none was.
        is_contested: whether a rival's plan takes turns with its own; then no two models share an execution.
        failed: whether the model could be loaded, but failed to run even once.
        co_runs: what the model needs for batches that run beside another model's batch (lock held).
    """

    def __init__(
        self,
        *,
        key: str,
        opened: OpenedModel,
        split: AutoSplit,
        settings: SharedSettings,
        limits: Limits,
        changed: threading.Condition,
        callbacks: Callbacks[ServedModel],
        advisor: MemoryAdvisor,
        num_lanes: int = 0,
        ring_memory: RingMemory | None = None,
    ) -> None:
        self.key, self.split = key, split
        self.failed = self.is_contested = False
        self._changed = changed
        self._observers: tuple[Callable[[Batch], None], ...] = (split.observe,)
        self.improvement = self.undone = self.heat = ""
        self._flow = Flow()
        self._pooled: PooledBackbone | None = None
        self._callbacks = callbacks
        self._warm_up = WarmUp(num_lanes, measures=settings.measures)
        self.head: HeadStage | None = None
        report = partial(callbacks.on_error, key)
        transport = opened.transport
        if transport is None:
            cores = Cores.parse(settings.head_cores, "head_cores")
            with cores.or_outer().bound():
                usual_threads = default_head_threads(opened.model.device, cores=cores)
            self.head = HeadStage.open(
                opened.model,
                limits,
                deliver=partial(callbacks.deliver, self),
                on_error=self._report_head,
                num_threads=settings.head_threads or (0 if cores else opened.head_threads) or usual_threads,
                cores=cores,
                weights=opened.head_weights,
                batch_size=settings.largest_batch,
                split_point=settings.split_point,
            )
            transport = LocalTransport(self.head)
        self.instance = ModelInstance(
            key=key,
            model=opened.model,
            transport=transport,
            advisor=advisor,
            changed=changed,
            on_error=report,
            watch=self._watch,
            ring_memory=ring_memory,
        )
        self.co_runs = CoRuns(self.instance)
        self.lanes = LaneUse(
            self.instance,
            self._warm_up,
            changed,
            ready=lambda: callbacks.note_lanes(self),
            on_error=report,
            tries=not settings.measures,
        )

    def open(self, settings: SharedSettings, taken_bytes: float) -> None:
        """Makes the first plan, tries it with blank images, and puts it in force.

        The arguments are those of ``ModelInstance.make_plan``. ``split_point`` names a split point.

        Raises:
            ConfigurationError: the settings do not fit the model, the model cannot run, or memory is short.
        """
        try:
            check_room_for_weights(self.key, [self.instance.model], settings.split_point)
            plan = self.make_plan(settings.stage, taken_bytes)
        except Exception:
            self.instance.close()
            raise
        self.instance.use(plan)
        self.instance.report_notes()

    def takes(self, payload: Payload) -> bool:
        """Returns whether the model computes frames with this payload."""
        return self.instance.model.entry.takes is Takes.of(payload)

    @property
    def plan(self) -> Plan:
        """The plan in force: batches are computed with it, unless they are co-run with another model's batch."""
        return self.instance.plan

    @property
    def backbone(self) -> Backbone:
        """The backbone of the plan in force. Its activations lie in memory of the plan's policy.

        It is the same object at each call, until another plan is in force.
        """
        plain, pool = self.plan.backbone, self.plan.memory.activations
        if pool.policy not in POOLED or isinstance(plain, (EnginePart, StreamedPartition)):
            self._pooled = None  # it would keep the memory of the previous plan
            return plain
        if self._pooled is None or self._pooled.inner is not plain or self._pooled.pool is not pool:
            self._pooled = PooledBackbone(plain, pool)
        return self._pooled

    @property
    def in_flight(self) -> Collection[Batch]:
        """The model's batches in flight (lock held)."""
        return self.instance.in_flight.values()

    def report(self) -> ModelReport:
        """Returns a report on the model and its memory."""
        report = self.instance.report()
        return replace(
            report,
            memory_reason=report.memory_reason + self.co_runs.reason,
            improvement="; ".join(filter(None, (self.undone, self.heat, self.improvement))),
            left_out=dict(self.head.left_out) if self.head is not None else {},
        )

    def make_plan(self, settings: StageSettings, taken_bytes: float, rival: SplitModel | None = None) -> Plan:
        """Makes a plan for these settings, and tries it with blank images. Prepares lanes if the model uses them.

        The arguments are those of ``ModelInstance.make_plan``.

        Raises:
            ConfigurationError: memory is short, or the model cannot run. Nothing was kept.
        """
        return self.lanes.follow(make_tried_plan(self.instance, settings, taken_bytes, self._warm_up, rival))

    @property
    def has_room(self) -> bool:
        """Whether another batch may begin: a slot is free and, with policy ``latest``, ``Flow`` agrees (lock held)."""
        plan = self.plan
        if plan.pool.leases.used >= len(plan.pool.leases):
            return False
        if plan.settings.drop_policy is DropPolicy.BLOCK:
            return True
        behind = sum([batch.timeline.published > 0.0 for batch in self.in_flight])
        return self._flow.admits(len(self.in_flight) - behind, behind)

    def start_batch(self, frames: Callable[[], Sequence[TenantFrame]], now: float, plan: Plan | None = None) -> Batch:
        """Makes a batch and gives it a slot (lock held). A slot must be free.

        Args:
            frames: returns the frames of the batch. It is called once the batch has its slot.
            now: seconds of the steady clock.
            plan: the plan with which the batch is computed; None: the plan in force.
        """
        batch = self.instance.start_batch(frames, now, plan)
        assert batch is not None, f"{self.key} has no free slot, and was scheduled"
        batch.is_contested = self.is_contested
        return batch

    def observe(self, observer: Callable[[Batch], None]) -> None:
        """Calls a function with each batch that a head worked on, with the lock held. It must not wait."""
        with self._changed:
            self._observers = (*self._observers, observer)

    def ignore(self, observer: Callable[[Batch], None]) -> None:
        """Does not call a function of ``observe`` any more."""
        with self._changed:
            self._observers = tuple(each for each in self._observers if each != observer)

    def start_head(self) -> None:
        """Starts the head's threads, if the server runs the head."""
        if self.head is not None:
            self.head.start()

    def stop_head(self) -> bool:
        """Has the head finish its batches, then ends its threads. Returns False if one took longer than ``HEAD_S``."""
        return self.head is None or self.head.stop(HEAD_S)

    def set_limits(self, limits: Limits) -> None:
        """Changes the limits of post-processing, if the server runs the head."""
        if self.head is not None:
            self.head.limits = limits

    def close(self) -> None:
        """Ends the head, and frees slots and memory. Call it when no batch is in flight."""
        self.stop_head()
        self.co_runs.clear()
        self.instance.close()
        if self.instance.model.device.type == "cuda":
            empty_cache()

    def _watch(self, batch: Batch) -> None:
        times = batch.timeline
        backbone_s = times.preprocessed - times.closed + times.backbone_end - times.backbone_start
        self._flow.note(backbone_s, times.head_end - times.head_start, times.delivered - times.head_end)
        for observe in self._observers:
            observe(batch)
        self._callbacks.watch(self, batch)

    def _report_head(self, error: Exception) -> None:
        if not isinstance(error, HandleError):  # the batch of a refused handle was settled before
            self._callbacks.on_error(self.key, error)
