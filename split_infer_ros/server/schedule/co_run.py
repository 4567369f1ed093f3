"""Finds two executions for a co-run among the requests that wait, each under its own memory policy.

This is the scheduler of the co-optimisation paper (§IV-B), which ``memory_cost.co_run_schedule`` implements. Its tasks
are the executions that wait. A model's executions may get another policy each time, because the neighbours in the queue
decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.choose import choose
from split_infer_ros.memory_cost.co_run_schedule import device_ends_ms, release
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import response_ms
from split_infer_ros.memory_cost.task import Task
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.scheduler import Decision, RequestBatch, Rules, decide

MAX_EXECUTIONS = 32  # the most executions that are considered, so that a decision is quick if many requests wait


@dataclass(frozen=True, slots=True)
class CoRunPair:
    """Two batches of two models that are co-run, each under its own memory policy.

    The batch under device memory is launched first. It is computed while the pages for the other batch's images are
    mapped.

    Attributes:
        device: the batch under device memory.
        managed: the batch under managed memory.
    """

    device: RequestBatch
    managed: RequestBatch

    @property
    def policies(self) -> tuple[tuple[RequestBatch, Policy], ...]:
        """The batches and their policies, in the order of their launches."""
        return (self.device, Policy.DEVICE), (self.managed, Policy.MANAGED)


@dataclass(frozen=True)
class CoRunCriteria:
    """The facts from which ``find_pair`` judges whether two batches may be co-run.

    Attributes:
        constants: the machine's constants of the overhead model.
        legal: the memory policies that may be used.
        task_of: returns what a batch does with memory, as the overhead model takes it.
    """

    constants: MachineConstants
    legal: Collection[Policy]
    task_of: Callable[[RequestBatch], Task]


def find_pair(
    decision: Decision,
    queue: Sequence[Request],
    costs: ExecutionCosts,
    *,
    now: float,
    rules: Rules,
    criteria: CoRunCriteria,
) -> CoRunPair | None:
    """Returns the decided batch and a later batch of the queue as a pair, if a co-run of the two pays; None otherwise.

    Each batch must be a whole execution, because fused models fill the GPU without a neighbour. Each must be the first
    of its model, because no frame overtakes an earlier one of its tenant. No request misses a deadline because of the
    pair. No execution ends later than if all ran under device memory.

    Args:
        decision: what ``decide`` returned for this queue, these costs, this time and these rules.
        queue: requests in order.
        costs: the costs of every model in the queue.
        now: seconds of the steady clock.
        rules: how requests may be combined.
        criteria: the facts from which a pair is judged.
    """
    if len(decision.batches) != 1:
        return None
    executions = _executions(decision, queue, costs, now=now, rules=rules)
    partners = _partners(executions)
    if not partners:
        return None
    tasks = [_task_of(execution, costs, criteria) for execution in executions]
    latest_ms = _latest_ms(executions, tasks, criteria, now=now)
    released = release(tasks, criteria.constants, criteria.legal, latest_ms=latest_ms, partners=partners)
    if len(released) == 1:
        return None
    first, other = executions[0][0], executions[tasks.index(released[1].task)][0]
    if released[0].policy is Policy.DEVICE:
        return CoRunPair(device=first, managed=other)
    return CoRunPair(device=other, managed=first)


def _executions(
    decision: Decision, queue: Sequence[Request], costs: ExecutionCosts, *, now: float, rules: Rules
) -> list[tuple[RequestBatch, ...]]:
    """Returns executions in their order, the decided one first, until each model of the queue has one."""
    executions: list[tuple[RequestBatch, ...]] = []
    remaining = list(queue)
    unseen = {request.model for request in queue}
    while decision.batches:
        executions.append(decision.batches)
        unseen -= {batch.model for batch in decision.batches}
        if not unseen or len(executions) == MAX_EXECUTIONS:
            break
        gone = {request.number for request in (*decision.requests, *decision.late)}
        remaining = [request for request in remaining if request.number not in gone]
        decision = decide(remaining, costs, now=now, rules=rules)
    return executions


def _partners(executions: Sequence[tuple[RequestBatch, ...]]) -> list[int]:
    """Returns the places of executions with one batch that are the first of their model. Place 0 is left out."""
    seen: set[str] = set()
    partners = []
    for index, execution in enumerate(executions):
        models = {batch.model for batch in execution}
        if index and len(models) == 1 and not models & seen:
            partners.append(index)
        seen |= models
    return partners


def _task_of(execution: tuple[RequestBatch, ...], costs: ExecutionCosts, criteria: CoRunCriteria) -> Task:
    """Returns the memory task of an execution. Fused models are not co-run, so only their time counts."""
    if len(execution) == 1:
        return criteria.task_of(execution[0])
    execution_s = costs.execution_s({batch.model: len(batch.requests) for batch in execution})
    return Task("fused", 0, 0, (), copies=0, execution_ms=1e3 * execution_s)


def _latest_ms(
    executions: Sequence[tuple[RequestBatch, ...]], tasks: Sequence[Task], criteria: CoRunCriteria, *, now: float
) -> list[float]:
    """Returns when each execution must have ended, in ms from now.

    This is when it ends under device memory, or the deadline of one of its requests if that is earlier. A deadline that
    would also be missed without a pair does not count.
    """
    latest_ms, end_ms = device_ends_ms(tasks, criteria.constants), 0.0
    for index, (execution, task) in enumerate(zip(executions, tasks, strict=True)):
        choice = choose(task, criteria.constants, criteria.legal)
        end_ms += response_ms(task, choice.overheads[choice.policy])
        for request in (request for batch in execution for request in batch.requests):
            deadline_ms = 1e3 * (request.deadline_s - now)
            if end_ms <= deadline_ms:
                latest_ms[index] = min(latest_ms[index], deadline_ms)
    return latest_ms
