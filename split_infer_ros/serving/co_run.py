"""Decides which two executions are co-run, and under which memory policies (§IV-B of the co-optimisation paper).

A task under managed memory leaves the GPU idle while its pages are mapped. The kernels of another task, under device
memory, fit into that idle time. A task may therefore get another policy each time: its neighbour in the queue decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.assignment import recovers
from split_infer_ros.memory_cost.choose import PolicyChoice, choose
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import overhead, response_ms
from split_infer_ros.memory_cost.task import Task
from split_infer_ros.serving.execution_costs import ExecutionCosts
from split_infer_ros.serving.request import Request
from split_infer_ros.serving.scheduler import Decision, RequestBatch, Rules, decide


@dataclass(frozen=True, slots=True)
class ReleasedTask:
    """A task that goes to the GPU now, and its memory policy."""

    task: Task
    policy: Policy


@dataclass(frozen=True, slots=True)
class CoRunPair:
    """Two batches of two models that are co-run, each under its own memory policy.

    The batch under device memory is launched first. It is computed while the pages for the other one's images are
    mapped.
    """

    device: RequestBatch
    managed: RequestBatch

    @property
    def policies(self) -> tuple[tuple[RequestBatch, Policy], ...]:
        """The batches and their policies, in the order of their launches."""
        return (self.device, Policy.DEVICE), (self.managed, Policy.MANAGED)


@dataclass(frozen=True)
class CoRunCriteria:
    """By what ``find_pair`` judges whether two batches may be co-run.

    Attributes:
        constants: the machine's constants of the overhead model.
        legal: the policies that may be used.
        task_of: describes what a batch does with memory.
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
    """Returns the decided batch and the next one as a pair, if the two are to be co-run; None otherwise.

    Each of the two must be a whole execution, because fused models fill the GPU without a neighbour. No request misses
    a deadline because its batch is the second of the pair.

    Args:
        decision: what ``decide`` returned for the same arguments.
        queue: requests in order.
        costs: of every model in the queue.
        now: seconds of the steady clock.
        rules: how requests may be combined.
        criteria: by what a pair is judged.
    """
    if len(decision.batches) != 1:
        return None
    first = decision.batches[0]
    decided = {request.number for request in (*first.requests, *decision.late)}
    remaining = [request for request in queue if request.number not in decided]
    next_batches = decide(remaining, costs, now=now, rules=rules).batches
    if len(next_batches) != 1 or next_batches[0].model == first.model:
        return None
    second = next_batches[0]
    first_task, second_task = criteria.task_of(first), criteria.task_of(second)
    released = release([first_task, second_task], criteria.constants, criteria.legal)
    if len(released) == 1:
        return None
    if released[0].policy is Policy.DEVICE:
        return CoRunPair(device=first, managed=second)
    alone_s = costs.batch_s(first.model, len(first.requests))
    pair_s = 1e-3 * co_run_ms(second_task, first_task, criteria.constants)
    would_miss = any(now + alone_s <= request.deadline_s < now + pair_s for request in first.requests)
    return None if would_miss else CoRunPair(device=second, managed=first)


def release(
    waiting: Sequence[Task], constants: MachineConstants, legal: Collection[Policy] = POLICIES
) -> tuple[ReleasedTask, ...]:
    """Releases the first task, and with it the first other task that makes a pair with it.

    A task that is released alone has its best policy. Device memory holds data twice. If either task of a pair could
    be the one under device memory, the one with less data is.

    Args:
        waiting: at least one task, in the order of their deadlines.
        constants: of the machine.
        legal: policies that may be used.

    Raises:
        ConfigurationError: no policy is legal.
    """
    first = waiting[0]
    choice = choose(first, constants, legal)
    if Policy.DEVICE in legal and Policy.MANAGED in legal:
        for other in waiting[1:]:
            apart_ms = _best_ms(first, choice) + _best_ms(other, choose(other, constants, legal))
            pairs = [
                (device, managed)
                for device, managed in ((first, other), (other, first))
                if _fits(device, managed, constants, apart_ms=apart_ms)
            ]
            if pairs:
                device, _ = min(pairs, key=lambda pair: pair[0].data_bytes)
                if device is first:
                    return ReleasedTask(first, Policy.DEVICE), ReleasedTask(other, Policy.MANAGED)
                return ReleasedTask(first, Policy.MANAGED), ReleasedTask(other, Policy.DEVICE)
    return (ReleasedTask(first, choice.policy),)


def co_run_ms(device: Task, managed: Task, constants: MachineConstants) -> float:
    """Returns the milliseconds from the release of a pair to its end (Fig. 6).

    The two tasks take their response times one after the other, less the kernels that the idle time hides.

    Args:
        device: the task under device memory. It runs in the other one's idle time, and ends after its own response
            time.
        managed: the task under managed memory.
        constants: of the machine.
    """
    device_overhead = overhead(device, Policy.DEVICE, constants)
    managed_overhead = overhead(managed, Policy.MANAGED, constants)
    hidden_ms = min(device.execution_ms, managed_overhead.idle_ms)
    return response_ms(device, device_overhead) + response_ms(managed, managed_overhead) - hidden_ms


def _fits(device: Task, managed: Task, constants: MachineConstants, *, apart_ms: float) -> bool:
    """Criterion 2: one task's execution fits into the other one's idle time, whose loss it recovers (Eq. 9).

    Eq. 9 tells how much any neighbour could recover. This neighbour may recover less. The two then run apart, each
    under its best policy.
    """
    overheads = {policy: overhead(managed, policy, constants) for policy in (Policy.DEVICE, Policy.MANAGED)}
    return (  # an unknown constant is NaN, and every comparison with NaN is false
        device.execution_ms <= overheads[Policy.MANAGED].idle_ms
        and recovers(overheads, Policy.MANAGED)
        and co_run_ms(device, managed, constants) <= apart_ms
    )


def _best_ms(task: Task, choice: PolicyChoice) -> float:
    return response_ms(task, choice.overheads[choice.policy])
