"""Chooses policies for tasks that run concurrently, so that they take less memory (paper 003, §IV-B).

The policies are D (``device``), M (``managed``) and H (``pinned``). Each task starts with the policy that is best for
it alone. A task of policy D may be switched to M or H, although it then takes longer, under two conditions:

- Guideline 1: the GPU's idle time makes up for the loss.
- Guideline 2: enough kernels of policy D remain to run in that idle time.

If more tasks may be switched than Guideline 2 allows, ``switches`` chooses those that save most memory.

Two notes on the equations:

- Eq. 9 and 10 bound a loss. A task that never had policy D loses nothing, so they are not applied to it.
- Eq. 11 is N_M + N_H <= N_D: kernels of M and H are at most as many as those of D. The text says "always more" kernels
  of D. This module uses the equation, so that each kernel of M or H has a kernel of D to overlap with. With "more", two
  equal tasks could not be D and M as in the paper's Fig. 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.policy import POLICIES, DeviceMapping, Policy
from split_infer_ros.memory_cost.choose import PolicyChoice, choose
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import Overhead, response_ms
from split_infer_ros.memory_cost.switches import Candidate, best_switches
from split_infer_ros.memory_cost.task import Task

_EQUATIONS = {DeviceMapping.MIGRATED: "Eq. 9", DeviceMapping.DIRECT: "Eq. 10"}


@dataclass(frozen=True)
class Assignment:
    """The policy chosen for a task, and the reason.

    Attributes:
        task: the task.
        policy: the chosen policy.
        overheads: the predicted overhead under each policy.
        reason: a sentence that gives the reason.
        switched: True if the task was switched from policy D to M or H. Policy D is better for the task alone.
    """

    task: Task
    policy: Policy
    overheads: Mapping[Policy, Overhead]
    reason: str
    switched: bool


def loss_ms(overheads: Mapping[Policy, Overhead], policy: Policy) -> float:
    """Returns the milliseconds that a task loses by a switch from policy D to ``policy``: O_M - O_D or O_H - O_D."""
    return overheads[policy].total_ms - overheads[Policy.DEVICE].total_ms


def recovers(overheads: Mapping[Policy, Overhead], policy: Policy) -> bool:
    """Returns whether overlap can recover the loss of a switch from policy D to ``policy`` (Guideline 1).

    The loss may be at most I - Ca_cpu - Ca_gpu for M (Eq. 9), and I - T_c for H (Eq. 10). For a task with several
    kernels, I is the sum over its mappings of pages. Ca_cpu and Ca_gpu are the sums over its flushes of caches.
    """
    return loss_ms(overheads, policy) <= overheads[policy].recoverable_ms


def max_switched(device_kernels: int, other_kernels: int) -> int:
    """Returns how many kernels of policy D may be switched to M or H (Guideline 2).

    After the switch, N_M + N_H <= N_D (Eq. 11) must hold.

    Args:
        device_kernels: N_D, the number of kernels of policy D before the switch.
        other_kernels: N_M + N_H, the number of other kernels before the switch.
    """
    return max(device_kernels - other_kernels, 0) // 2


def assign(
    tasks: Sequence[Task],
    constants: MachineConstants,
    legal: Collection[Policy] = POLICIES,
    running: Sequence[tuple[Task, Policy]] = (),
) -> tuple[Assignment, ...]:
    """Assigns a policy to each task.

    Args:
        tasks: the tasks that need a policy.
        constants: the machine's constants.
        legal: the policies to choose from.
        running: the other tasks that run, each with its policy. They keep their policies, and their kernels count in
            Eq. 11.

    Returns:
        The assignments, in the order of the tasks.

    Raises:
        ConfigurationError: no policy is legal.
    """
    choices = [choose(task, constants, legal) for task in tasks]
    targets = [switch_target(choice, legal) for choice in choices]
    kernel_limit = max_switched_kernels([*zip(tasks, (choice.policy for choice in choices), strict=True), *running])
    candidates = [candidate(task, choice, target) for task, choice, target in zip(tasks, choices, targets, strict=True)]
    switched = best_switches(candidates, kernel_limit=kernel_limit).indices
    assignments = []
    for index, (task, choice, target) in enumerate(zip(tasks, choices, targets, strict=True)):
        is_switched = index in switched
        limit = f"of {task.num_kernels}, {kernel_limit} may be switched"
        assignments.append(
            Assignment(
                task=task,
                policy=target if is_switched and target is not None else choice.policy,
                overheads=choice.overheads,
                reason=_reason(choice, target, is_switched=is_switched, legal=legal, limit=limit),
                switched=is_switched,
            )
        )
    return tuple(assignments)


def candidate(task: Task, choice: PolicyChoice, target: Policy | None) -> Candidate:
    """Returns the bytes that a switch of the task to ``target`` saves, and the milliseconds that it costs.

    If ``target`` is None, the task cannot be switched: nothing is saved, and ``loss_ms`` is None.
    """
    alone_ms = response_ms(task, choice.overheads[choice.policy])
    if target is None:
        return Candidate(task.num_kernels, alone_ms)
    return Candidate(
        task.num_kernels,
        alone_ms,
        saved_bytes=task.footprint_bytes(Policy.DEVICE) - task.footprint_bytes(target),
        loss_ms=loss_ms(choice.overheads, target),
    )


def max_switched_kernels(running: Sequence[tuple[Task, Policy]]) -> int:
    """Returns how many kernels of policy D may be switched to M or H (Guideline 2, Eq. 11), over all tasks together.

    Args:
        running: all tasks, each with the policy that it has before the switch.
    """
    all_kernels = sum(task.num_kernels for task, _ in running)
    device_kernels = sum(task.num_kernels for task, policy in running if policy is Policy.DEVICE)
    return max_switched(device_kernels, all_kernels - device_kernels)


def switch_target(choice: PolicyChoice, legal: Collection[Policy]) -> Policy | None:
    """Returns the policy to which a task of policy D may be switched: M or H (Guideline 1).

    If the guideline allows both, returns the one with the smaller overhead. Returns None if the guideline allows none,
    or if the task's policy is not D.
    """
    if choice.policy is not Policy.DEVICE:
        return None
    targets = [policy for policy in _others(legal) if recovers(choice.overheads, policy)]
    return min(targets, key=lambda policy: choice.overheads[policy].total_ms, default=None)


def _others(legal: Collection[Policy]) -> list[Policy]:
    """Returns the legal policies other than D."""
    return [policy for policy in POLICIES if policy.mapping in _EQUATIONS and policy in legal]


def _reason(
    choice: PolicyChoice, target: Policy | None, *, is_switched: bool, legal: Collection[Policy], limit: str
) -> str:
    if choice.policy is not Policy.DEVICE:
        return f"{choice.reason[:-1]}; nothing to switch."
    if target is None:
        refusals = [
            f"{policy.value} would lose {loss_ms(choice.overheads, policy):.3g} ms, and overlap recovers "
            f"{choice.overheads[policy].recoverable_ms:.3g} ms ({_EQUATIONS[policy.mapping]})"
            for policy in _others(legal)
            if choice.overheads[policy].is_known
        ]
        return f"device: {'; '.join(refusals) or 'no other policy is legal and known here'}."
    terms = (
        f"{loss_ms(choice.overheads, target):.3g} ms are lost, of which overlap recovers "
        f"{choice.overheads[target].recoverable_ms:.3g} ms ({_EQUATIONS[target.mapping]})"
    )
    if is_switched:
        return f"{target.value}: {terms}, and enough kernels of policy device remain (Eq. 11)."
    return f"device: of {target.value} {terms}, but too few kernels of policy device would remain (Eq. 11: {limit})."
