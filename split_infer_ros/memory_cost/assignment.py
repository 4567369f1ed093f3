"""Policies for tasks that run side by side: memory saved where overlap pays for it (§IV-B, Guidelines 1 and 2).

Each task starts with the policy that is best for it alone. One of policy D may be switched to M or H though that costs
it something, if the GPU's idle time makes up for it (Guideline 1) and enough kernels of policy D remain to run in that
time (Guideline 2). Of what may be switched, that is switched which saves most memory; of equals, what loses least.

Eq. 9 and 10 bound a loss. They are not asked where nothing is lost: such a task has no use for policy D in the first
place. Of Eq. 11, ``N_M + N_H <= N_D``, the text says "always more" kernels of D; the formula is taken, by which each
kernel has one to overlap with, and without which two equal tasks could not be D and M as in the paper's Fig. 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.choose import PolicyChoice, choose
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import Overhead
from split_infer_ros.memory_cost.task import Task

_EQUATIONS = {Policy.MANAGED: "Eq. 9", Policy.PINNED: "Eq. 10"}


@dataclass(frozen=True)
class Assignment:
    """A task's policy, and why.

    Attributes:
        task: which.
        policy: the one to take.
        overheads: what is predicted of each policy.
        reason: a sentence.
        switched: by the guidelines, from a policy D that is better for the task alone.
    """

    task: Task
    policy: Policy
    overheads: Mapping[Policy, Overhead]
    reason: str
    switched: bool


def loss_ms(overheads: Mapping[Policy, Overhead], policy: Policy) -> float:
    """What a task loses by a switch from D: O_M - O_D or O_H - O_D."""
    return overheads[policy].total_ms - overheads[Policy.DEVICE].total_ms


def recovers(overheads: Mapping[Policy, Overhead], policy: Policy) -> bool:
    """Guideline 1: the loss is at most what overlap can recover (Eq. 9: I - Ca_cpu - Ca_gpu; Eq. 10: I - T_c).

    Of a task with several kernels, I is all its mapping, and Ca_cpu and Ca_gpu are all its flushes.
    """
    return loss_ms(overheads, policy) <= overheads[policy].recoverable_ms


def most_switched(device_kernels: int, other_kernels: int) -> int:
    """Guideline 2: how many kernels of D may become those of M or H, so that N_M + N_H <= N_D (Eq. 11) still holds."""
    return max(device_kernels - other_kernels, 0) // 2


def assign(
    tasks: Sequence[Task],
    constants: MachineConstants,
    legal: Collection[Policy] = POLICIES,
    beside: Sequence[tuple[Task, Policy]] = (),
) -> tuple[Assignment, ...]:
    """A policy for each task, in their order.

    Args:
        tasks: those that need one.
        constants: the machine's.
        legal: what may be taken.
        beside: other tasks that run and keep the policy they have; their kernels count (Eq. 11).

    Raises:
        ConfigurationError: no policy is legal.
    """
    choices = [choose(task, constants, legal) for task in tasks]
    kernels = [len(task.kernels) for task in tasks]
    on_device = [place for place, choice in enumerate(choices) if choice.policy is Policy.DEVICE]
    running = [*zip(tasks, (choice.policy for choice in choices), strict=True), *beside]
    device_kernels = sum(len(task.kernels) for task, policy in running if policy is Policy.DEVICE)
    room = most_switched(device_kernels, sum(len(task.kernels) for task, _ in running) - device_kernels)
    switches = {place: _switch(choices[place], legal) for place in on_device}
    able = {place: policy for place, policy in switches.items() if policy is not None}
    switched = _most_saved(tasks, choices, able, room)
    return tuple(
        Assignment(
            task,
            able[place] if place in switched else choice.policy,
            choice.overheads,
            _reason(choice, able.get(place), place in switched, legal, f"of {kernels[place]}, {room} may be switched"),
            place in switched,
        )
        for place, (task, choice) in enumerate(zip(tasks, choices, strict=True))
    )


def _switch(choice: PolicyChoice, legal: Collection[Policy]) -> Policy | None:
    """What a task of policy D may be switched to: of M and H, where Guideline 1 allows it, the one that costs less."""
    able = [policy for policy in _EQUATIONS if policy in legal and recovers(choice.overheads, policy)]
    return min(able, key=lambda policy: choice.overheads[policy].total_ms, default=None)


def _most_saved(
    tasks: Sequence[Task], choices: Sequence[PolicyChoice], able: Mapping[int, Policy], room: int
) -> frozenset[int]:
    """Which tasks to switch (a knapsack of kernels): most bytes saved, then least ms lost, then the fewest tasks."""
    Saved = tuple[int, float, int]
    best: dict[int, tuple[Saved, frozenset[int]]] = {0: ((0, 0.0, 0), frozenset())}  # by the kernels switched
    for place, policy in able.items():
        task = tasks[place]
        saved = task.footprint_bytes(Policy.DEVICE) - task.footprint_bytes(policy)
        loss = loss_ms(choices[place].overheads, policy)
        for used, ((bytes_, lost, count), chosen) in list(best.items()):
            total = used + len(task.kernels)
            value = bytes_ + saved, lost - loss, count - 1
            if total <= room and (total not in best or value > best[total][0]):
                best[total] = value, chosen | {place}
    return max(best.values(), key=lambda found: found[0])[1]


def _reason(choice: PolicyChoice, able: Policy | None, switched: bool, legal: Collection[Policy], kernels: str) -> str:
    if choice.policy is not Policy.DEVICE:
        return f"{choice.reason[:-1]}; nothing to switch."
    if able is None:
        refusals = [
            f"{policy.value} would lose {loss_ms(choice.overheads, policy):.3g} ms, and overlap recovers "
            f"{choice.overheads[policy].recoverable_ms:.3g} ms ({equation})"
            for policy, equation in _EQUATIONS.items()
            if policy in legal and choice.overheads[policy].known
        ]
        return f"device: {'; '.join(refusals) or 'no other policy is legal and known here'}."
    terms = (
        f"{loss_ms(choice.overheads, able):.3g} ms are lost, of which overlap recovers "
        f"{choice.overheads[able].recoverable_ms:.3g} ms ({_EQUATIONS[able]})"
    )
    if switched:
        return f"{able.value}: {terms}, and enough kernels of policy device remain (Eq. 11)."
    return f"device: of {able.value} {terms}, but too few kernels of policy device would remain (Eq. 11: {kernels})."
