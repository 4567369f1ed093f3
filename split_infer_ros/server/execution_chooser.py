"""Chooses the executions that begin now, among the frames that wait, and takes their frames off the queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.server.co_run_finder import CoRunFinder
from split_infer_ros.server.fusion_kind import FusionKind
from split_infer_ros.server.in_flight import InFlightBatch
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.lane_scheduler import LaneScheduler, ScheduledExecution
from split_infer_ros.server.schedule.scheduler import Decision, RequestBatch, Rules
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.shared_weights import prefetch_next
from split_infer_ros.server.tenant_state import WaitingFrames, drop


class ExecutionChooser:
    """Chooses executions, drops late frames and gives each batch its slot. Its caller holds the pipeline's lock.

    Args:
        models: the models that are served, by their keys. The dispatcher changes it.
        waiting: the frames that wait for them.
        lane_scheduler: knows which executions are under way.
    """

    def __init__(
        self, models: Mapping[str, ServedModel], waiting: WaitingFrames, lane_scheduler: LaneScheduler
    ) -> None:
        self._models = models
        self._waiting = waiting
        self._lane_scheduler = lane_scheduler
        self._co_runs = CoRunFinder(models, waiting)

    def choose(
        self, modes: ExecutionModes, stacks: Collection[str], *, now: float, rules: Rules
    ) -> list[tuple[ScheduledExecution, list[InFlightBatch]]]:
        """Returns the executions that begin now, each with its batches: none, one, or the two of a co-run.

        Args:
            modes: costs of every model that is ready.
            stacks: the names of the stacks that may run.
            now: seconds of the steady clock.
            rules: how requests may be combined.
        """
        able = {key for key, model in self._models.items() if model.ready and model.has_room}
        queue = self._waiting.of_models(able)
        execution = self._lane_scheduler.choose(queue, modes, now=now, rules=rules)
        decision = execution.decision
        costs, pair = modes.whole, []
        if execution.lane is None:
            pair = self._co_runs.find(decision, queue, costs, now=now, rules=rules)
        prefetch_next(self._models, decision, queue, costs, now=now, rules=rules)
        drop(self._waiting.take(decision.late), DropReason.DEADLINE)
        if pair:
            return [
                (ScheduledExecution(Decision((batch,))), [self._take_off(batch, now, plan)]) for batch, plan in pair
            ]
        if not decision.batches:
            return []
        batches = [self._take_off(batch, now) for batch in decision.batches]
        if len(batches) > 1:
            fusion = FusionKind.STACKED if decision.stack in stacks else FusionKind.FUSED
            for batch in batches:
                batch.fusion = fusion
        return [(execution, batches)]

    def _take_off(self, batch: RequestBatch, now: float, plan: Plan | None = None) -> InFlightBatch:
        return self._models[batch.model].take_off(self._waiting.take(batch.requests), now, plan)
