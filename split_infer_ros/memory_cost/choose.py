"""The policy that the model has for one task."""

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
    """A policy, and why.

    Attributes:
        policy: the one to take.
        overheads: what is predicted of each policy, those that are not legal here too.
        reason: a sentence with all predictions.
    """

    policy: Policy
    overheads: Mapping[Policy, Overhead]
    reason: str


def choose(task: Task, constants: MachineConstants, legal: Collection[Policy] = POLICIES) -> PolicyChoice:
    """The legal policy of the least overhead; of equals the one of the smaller footprint.

    What cannot be predicted is not taken. If that is so of the default, D (of those that are legal the first), there
    is nothing to compare with, and it stays the default.

    Raises:
        ConfigurationError: no policy is legal.
    """
    able = [policy for policy in POLICIES if policy in legal]
    if not able:
        raise ConfigurationError(f"Task {task.name} has no memory policy: none is legal here.")
    overheads = {policy: overhead(task, policy, constants) for policy in POLICIES}
    known = [policy for policy in able if overheads[policy].known]
    if able[0] in known:
        best = min(known, key=lambda policy: (overheads[policy].total_ms, task.footprint_bytes(policy)))
        why = "has the least overhead"
    else:
        best, why = able[0], "is the default; its overhead is not known"
    return PolicyChoice(best, overheads, f"{best.value} {why}: {describe(overheads, able)}.")


def describe(overheads: Mapping[Policy, Overhead], legal: Collection[Policy]) -> str:
    """The predictions, for people: ``device 1.2 ms, managed unknown, pinned 3 ms (not legal here)``."""
    parts = []
    for policy, found in overheads.items():
        cost = "unknown" if math.isnan(found.total_ms) else f"{found.total_ms:.3g} ms"
        parts.append(f"{policy.value} {cost}{'' if policy in legal else ' (not legal here)'}")
    return ", ".join(parts)
