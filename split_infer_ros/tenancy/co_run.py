"""Which two executions run side by side, and each one's memory policy (§IV-B of the co-optimisation paper).

A task under managed memory leaves the GPU idle while its pages are mapped; another one's kernels, under device memory,
fit in there. The same task may have another policy the next time: its neighbour in the queue decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_model.assignment import recovers
from split_infer_ros.memory_model.choose import choose
from split_infer_ros.memory_model.constants import MachineConstants
from split_infer_ros.memory_model.overhead import overhead
from split_infer_ros.memory_model.task import Task


@dataclass(frozen=True, slots=True)
class Released:
    """A task that goes to the GPU now, and the policy under which it does."""

    task: Task
    policy: Policy


def release(waiting: Sequence[Task], constants: MachineConstants) -> tuple[Released, ...]:
    """The first task, and beside it the first of the others with which it makes a pair; alone it has its best policy.

    Args:
        waiting: in the order of their deadlines, at least one.
        constants: of the machine.
    """
    first = waiting[0]
    for other in waiting[1:]:
        for device, managed in ((first, other), (other, first)):
            if _fit(device, managed, constants):
                policies = {id(device): Policy.DEVICE, id(managed): Policy.MANAGED}
                return Released(first, policies[id(first)]), Released(other, policies[id(other)])
    return (Released(first, choose(first, constants).policy),)


def _fit(device: Task, managed: Task, constants: MachineConstants) -> bool:
    """Criterion 2: the execution of the one is at most the idle time of the other, whose loss that recovers (Eq. 9)."""
    overheads = {policy: overhead(managed, policy, constants) for policy in (Policy.DEVICE, Policy.MANAGED)}
    idle_ms = overheads[Policy.MANAGED].idle_ms  # where a constant is not known it is NaN, which is no less than any
    return device.execution_ms <= idle_ms and recovers(overheads, Policy.MANAGED)
