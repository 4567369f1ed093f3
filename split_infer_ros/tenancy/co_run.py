"""Which two executions run side by side, and each one's memory policy (§IV-B of the co-optimisation paper).

A task under managed memory leaves the GPU idle while its pages are mapped; another one's kernels, under device memory,
fit in there. The same task may have another policy the next time: its neighbour in the queue decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_model.assignment import recovers
from split_infer_ros.memory_model.choose import Choice, choose
from split_infer_ros.memory_model.constants import MachineConstants
from split_infer_ros.memory_model.overhead import overhead, response_ms
from split_infer_ros.memory_model.task import Task

_DEVICE_FIRST = Policy.DEVICE, Policy.MANAGED


@dataclass(frozen=True, slots=True)
class Released:
    """A task that goes to the GPU now, and the policy under which it does."""

    task: Task
    policy: Policy


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


def _best_ms(task: Task, choice: Choice) -> float:
    return response_ms(task, choice.overheads[choice.policy])
