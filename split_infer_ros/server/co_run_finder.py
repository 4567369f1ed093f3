"""Finds two batches for a co-run among the frames that wait, and the plans with which they are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from split_infer_ros.memory_cost.task import Task
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.schedule.co_run import CoRunCriteria, find_pair
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.scheduler import Decision, RequestBatch, Rules
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.tenant_state import WaitingFrames


class CoRunFinder:
    """Finds pairs of batches for which both models have slots and staging. Its caller holds the pipeline's lock.

    Args:
        models: the models that are served, by key. The dispatcher changes this mapping.
        waiting: the frames that wait for these models.
    """

    def __init__(self, models: Mapping[str, ServedModel], waiting: WaitingFrames) -> None:
        self._models = models
        self._waiting = waiting

    def find(
        self, decision: Decision, queue: Sequence[Request], costs: ExecutionCosts, *, now: float, rules: Rules
    ) -> list[tuple[RequestBatch, Plan]]:
        """Returns two batches in the order of their launches, each with its plan; an empty list if there is no pair.

        A model without a plan under the needed policy makes one. If it cannot, there is no pair.

        Args:
            decision: what would run next alone.
            queue: requests of models that can run now, in order.
            costs: the costs of every model in the queue.
            now: seconds of the steady clock.
            rules: how requests may be combined.
        """
        known = self._models[decision.batches[0].model].co_runs if len(decision.batches) == 1 else None
        if known is None:
            return []

        def task_of(batch: RequestBatch) -> Task:
            count, image_bytes = len(batch.requests), self._waiting.image_bytes(batch.requests)
            return self._models[batch.model].task(count, image_bytes, costs.batch_s(batch.model, count))

        constants, legal = known
        criteria = CoRunCriteria(constants=constants, legal=legal, task_of=task_of)
        pair = find_pair(decision, queue, costs, now=now, rules=rules, criteria=criteria)
        plans = [(batch, self._models[batch.model].plan_by(policy)) for batch, policy in pair.policies] if pair else []
        found = [(batch, plan) for batch, plan in plans if plan is not None]
        return found if len(found) == len(plans) else []
