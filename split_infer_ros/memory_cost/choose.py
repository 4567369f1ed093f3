"""Chooses the memory policy with the least predicted overhead for one task."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import Overhead, overhead
from split_infer_ros.memory_cost.task import Task


@dataclass(frozen=True)
class PolicyChoice:
    """The policy chosen for a task, and the reason.

    Attributes:
        policy: the chosen policy.
        overheads: the predicted overhead under each policy, also under those that are not legal here.
        reason: a sentence that gives the reason and all predictions.
    """

    policy: Policy
    overheads: Mapping[Policy, Overhead]
    reason: str


def choose(task: Task, constants: MachineConstants, legal: Collection[Policy] = POLICIES) -> PolicyChoice:
    """Returns the legal policy with the least overhead. If overheads are equal, the smaller footprint wins.

    The default is the first legal policy: D (``device``), if D is legal. If the default's overhead is unknown, nothing
    can be compared with it, and the default is chosen. Otherwise, a policy with an unknown overhead is never chosen.

    Args:
        task: the task.
        constants: the machine's constants.
        legal: the policies to choose from.

    Raises:
        ConfigurationError: no policy is legal.
    """
    ordered = [policy for policy in POLICIES if policy in legal]
    if not ordered:
        raise ConfigurationError(f"Task {task.name} has no memory policy: none is legal here.")
    default = ordered[0]
    overheads = {policy: overhead(task, policy, constants) for policy in POLICIES}
    predictable = [policy for policy in ordered if overheads[policy].is_known]
    if default in predictable:
        best = min(predictable, key=lambda policy: (overheads[policy].total_ms, task.footprint_bytes(policy)))
        why = "has the least overhead"
    else:
        best, why = default, "is the default; its overhead is not known"
    return PolicyChoice(best, overheads, f"{best.value} {why}: {describe(overheads, ordered)}.")


def describe(overheads: Mapping[Policy, Overhead], legal: Collection[Policy]) -> str:
    """Returns the predictions as text, such as ``device 1.2 ms, managed unknown, pinned 3 ms (not legal here)``."""
    parts = []
    for policy, predicted in overheads.items():
        cost = "unknown" if math.isnan(predicted.total_ms) else f"{predicted.total_ms:.3g} ms"
        parts.append(f"{policy.value} {cost}{'' if policy in legal else ' (not legal here)'}")
    return ", ".join(parts)
