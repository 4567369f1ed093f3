"""Which two executions run side by side, and each one's memory policy (§IV-B of the co-optimisation paper).

A task under managed memory leaves the GPU idle while its pages are mapped; another one's kernels, under device memory,
fit in there. The same task may have another policy the next time: its neighbour in the queue decides.
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
from split_infer_ros.serving.scheduler import Batch, Decision, Rules, decide

_DEVICE_FIRST = Policy.DEVICE, Policy.MANAGED


@dataclass(frozen=True, slots=True)
class Released:
    """A task that goes to the GPU now, and the policy under which it does."""

    task: Task
    policy: Policy


@dataclass(frozen=True, slots=True)
class Pair:
    """Two batches of two models, each to be executed under its policy: the one under device memory first.

    So it is computed while the pages are mapped that hold the other one's images.
    """

    device: Batch
    managed: Batch

    @property
    def policies(self) -> tuple[tuple[Batch, Policy], ...]:
        """The batches, and by which policy each goes, in the order of their launches."""
        return (self.device, Policy.DEVICE), (self.managed, Policy.MANAGED)


@dataclass(frozen=True)
class Machine:
    """What pairs are found by.

    Attributes:
        constants: of the overhead model.
        legal: policies that may be taken.
        task_of: what a batch does with memory.
    """

    constants: MachineConstants
    legal: Collection[Policy]
    task_of: Callable[[Batch], Task]


def find_pair(
    decision: Decision, queue: Sequence[Request], costs: ExecutionCosts, now: float, rules: Rules, machine: Machine
) -> Pair | None:
    """The batch that was decided on and the one that would be next, where they are released as a pair.

    Each must be a whole execution: models that run as one fill the GPU without. No request that would meet its
    deadline misses it for being the second of the pair.

    Args:
        decision: what ``decide`` says of the next four.
        queue: in order.
        costs: of every model in the queue.
        now: seconds, of the steady clock.
        rules: how requests may be put together.
        machine: whose overheads count.
    """
    if len(decision.batches) != 1:
        return None
    (first,) = decision.batches
    gone = {request.number for request in (*first.requests, *decision.late)}
    following = decide([request for request in queue if request.number not in gone], costs, now, rules).batches
    if len(following) != 1 or following[0].model == first.model:
        return None
    task, neighbour = machine.task_of(first), machine.task_of(following[0])
    released = release([task, neighbour], machine.constants, machine.legal)
    if len(released) == 1:
        return None
    if released[0].policy is Policy.DEVICE:
        return Pair(first, *following)
    alone_s = costs.batch_s(first.model, len(first.requests))
    pair_s = 1e-3 * together_ms(neighbour, task, machine.constants)
    hurts = any(now + alone_s <= request.deadline_s < now + pair_s for request in first.requests)
    return None if hurts else Pair(*following, first)


def release(
    waiting: Sequence[Task], constants: MachineConstants, legal: Collection[Policy] = POLICIES
) -> tuple[Released, ...]:
    """The first task, and beside it the first of the others with which it makes a pair; alone it has its best policy.

    Where either of a pair may be the one under device memory, which has its data twice, it is the one with less.

    Args:
        waiting: in the order of their deadlines, at least one.
        constants: of the machine.
        legal: policies that may be taken.

    Raises:
        ConfigurationError: no policy is legal.
    """
    first = waiting[0]
    alone = choose(first, constants, legal)
    if Policy.DEVICE in legal and Policy.MANAGED in legal:
        for other in waiting[1:]:
            apart_ms = _best_ms(first, alone) + _best_ms(other, choose(other, constants, legal))
            able = [
                (device.data_bytes, policies)
                for device, managed, policies in ((first, other, _DEVICE_FIRST), (other, first, _DEVICE_FIRST[::-1]))
                if _fit(device, managed, constants, apart_ms)
            ]
            if able:
                _, policies = min(able, key=lambda found: found[0])
                return tuple(map(Released, (first, other), policies))
    return (Released(first, alone.policy),)


def together_ms(device: Task, managed: Task, constants: MachineConstants) -> float:
    """A pair from its release to its end: one after the other, but for the kernels that the idle time hides (Fig. 6).

    Args:
        device: runs under device memory, within the other's idle time; it is done after its own response time.
        managed: runs under managed memory.
        constants: of the machine.
    """
    beside = overhead(managed, Policy.MANAGED, constants)
    hidden = min(device.execution_ms, beside.idle_ms)
    return response_ms(device, overhead(device, Policy.DEVICE, constants)) + response_ms(managed, beside) - hidden


def _fit(device: Task, managed: Task, constants: MachineConstants, apart_ms: float) -> bool:
    """Criterion 2: the execution of the one is at most the idle time of the other, whose loss that recovers (Eq. 9).

    Eq. 9 asks what could be recovered. What this very neighbour does recover may be less: then they had better run
    apart, each in its best way.
    """
    overheads = {policy: overhead(managed, policy, constants) for policy in (Policy.DEVICE, Policy.MANAGED)}
    return (  # where a constant is not known it is NaN, which is no less than any
        device.execution_ms <= overheads[Policy.MANAGED].idle_ms
        and recovers(overheads, Policy.MANAGED)
        and together_ms(device, managed, constants) <= apart_ms
    )


def _best_ms(task: Task, choice: PolicyChoice) -> float:
    return response_ms(task, choice.overheads[choice.policy])
