"""Chooses the executions that begin now from the frames that wait, and takes their frames off the queue."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.memory_cost.task import Task
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.fusion_kind import FusionKind
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.schedule.co_run import CoRunCriteria, find_pair
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.lane_scheduler import LaneScheduler, ScheduledExecution
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.scheduler import Decision, RequestBatch, Rules, due_at
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.shared_weights import prefetch_next
from split_infer_ros.server.tenant_state import WaitingFrames, drop


@dataclass(frozen=True, slots=True)
class Choice:
    """The executions that begin now, and when to look again.

    Attributes:
        executions: pairs of an execution and its batches. The list is empty, or has one pair, or the two of a co-run.
        wake_at: when the next batch that is not full may run, in seconds of the steady clock; infinite if none waits.
    """

    executions: list[tuple[ScheduledExecution, list[Batch]]] = field(default_factory=list)
    wake_at: float = math.inf


class ExecutionChooser:
    """Chooses executions, drops late frames and gives each batch its slot. Callers hold the server's lock.

    Args:
        models: the models that are served, by key. ``ServedModels`` changes this mapping.
        waiting: the frames that wait for these models.
        lane_scheduler: knows which executions are under way, and decides between all cores and a lane.
    """

    def __init__(
        self, models: Mapping[str, ServedModel], waiting: WaitingFrames, lane_scheduler: LaneScheduler
    ) -> None:
        self._models = models
        self._waiting = waiting
        self._lane_scheduler = lane_scheduler

    def choose(self, modes: ExecutionModes, stacks: Collection[str], *, now: float, rules: Rules) -> Choice:
        """Returns the executions that begin now. Takes their frames off the queue.

        A batch is closed only when its turn comes, because newer or more frames may come until then.

        Args:
            modes: costs of the models, as far as they are known.
            stacks: the names of the stacks that may run.
            now: seconds of the steady clock.
            rules: how requests may be combined.
        """
        able = {key for key, model in self._models.items() if not model.failed and model.has_room}
        queue = self._waiting.of_models(able)
        if not queue:
            return Choice()
        if any(model.is_contested for model in self._models.values()):
            rules = replace(rules, fuse=False, stack=False)
        wake_at = math.inf
        if rules.timeout_s and rules.largest_batch > 1 and not self._waiting.is_draining:
            due = due_at(queue, modes.whole, rules)
            wake_at = min((at for at in due.values() if at > now), default=math.inf)
            queue = [request for request in queue if due[request.model] <= now]
        on_lanes, has_lanes = None, self._lane_scheduler.has_lanes
        if has_lanes:
            on_lanes = {key for key in able if self._models[key].lanes.may_be_used}
        execution = self._lane_scheduler.choose(queue, modes, now=now, rules=rules, on_lanes=on_lanes)
        decision = execution.decision
        costs, pair = modes.whole, []
        if rules.fuse and not has_lanes:  # a CPU has lanes, and co-runs are for GPUs
            pair = self._find_co_run(decision, queue, costs, now=now, rules=rules)
        prefetch_next(self._models, decision, queue, costs, now=now, rules=rules)
        if decision.late:
            drop(self._waiting.take(decision.late), DropReason.DEADLINE)
        if pair:
            return Choice(
                [
                    (ScheduledExecution(Decision((batch,))), [self._start_batch(batch, now, plan)])
                    for batch, plan in pair
                ],
                wake_at,
            )
        if not decision.batches:
            return Choice(wake_at=wake_at)
        for each in decision.batches:
            model = self._models[each.model]
            pays = self._lane_scheduler.lanes_pay(each.model, model.plan.settings.lane_limit)
            model.lanes.note_batch(now, misses_lane=execution.misses_lane, lanes_pay=pays)
        batches = [self._start_batch(batch, now) for batch in decision.batches]
        if len(batches) > 1:
            fusion = FusionKind.STACKED if decision.stack in stacks else FusionKind.FUSED
            for batch in batches:
                batch.fusion = fusion
        return Choice([(execution, batches)], wake_at)

    def _find_co_run(
        self, decision: Decision, queue: Sequence[Request], costs: ExecutionCosts, *, now: float, rules: Rules
    ) -> list[tuple[RequestBatch, Plan]]:
        """Returns two batches for a co-run in the order of their launches, each with its plan; an empty list if none.

        Both models have slots and staging. A model without a plan under the needed policy makes one. If it cannot,
        there is no pair.

        Args:
            decision: what would run next alone.
            queue: requests of models that can run now, in order.
            costs: the costs of every model in the queue.
            now: seconds of the steady clock.
            rules: how requests may be combined.
        """
        known = self._models[decision.batches[0].model].co_runs.inputs if len(decision.batches) == 1 else None
        if known is None:
            return []

        def task_of(batch: RequestBatch) -> Task:
            count, image_bytes = len(batch.requests), self._waiting.image_bytes(batch.requests)
            return self._models[batch.model].co_runs.task(count, image_bytes, costs.batch_s(batch.model, count))

        def plan_of(batch: RequestBatch, policy: Policy) -> Plan | None:
            model = self._models[batch.model]
            return model.co_runs.plan_by(policy) if model.has_room else None

        constants, legal = known
        criteria = CoRunCriteria(constants=constants, legal=legal, task_of=task_of)
        pair = find_pair(decision, queue, costs, now=now, rules=rules, criteria=criteria)
        plans = [(batch, plan_of(batch, policy)) for batch, policy in pair.policies] if pair else []
        found = [(batch, plan) for batch, plan in plans if plan is not None]
        return found if len(found) == len(plans) else []

    def _start_batch(self, batch: RequestBatch, now: float, plan: Plan | None = None) -> Batch:
        """Takes a batch's frames off the queue once it has its slot. If it gets none, its frames wait on."""
        return self._models[batch.model].start_batch(lambda: self._waiting.take(batch.requests), now, plan)
