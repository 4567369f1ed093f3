"""Chooses which tasks of policy D to switch to a policy with less memory. This is a knapsack of kernels and time.

The best switches save most bytes. If several save as many, those that lose least time win, then the fewest tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_STATES = 512  # how many partial choices are kept, the best ones; 9 tasks have no more


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task in a sequence of tasks that run one after the other. It may be switched to a policy with less memory.

    Attributes:
        num_kernels: how many kernels the task launches.
        response_ms: the task's response time without a switch.
        saved_bytes: the memory that a switch saves.
        loss_ms: the time that a switch costs; None if the task cannot be switched.
        latest_ms: when the task must have ended, in ms on the same clock as ``start_ms`` of ``best_switches``.
    """

    num_kernels: int
    response_ms: float
    saved_bytes: int = 0
    loss_ms: float | None = None
    latest_ms: float = math.inf


@dataclass(frozen=True, slots=True)
class Switches:
    """A choice of tasks that are switched.

    Attributes:
        indices: the tasks' places in the sequence.
        num_kernels: the number of kernels of these tasks together.
        saved_bytes: the memory that all switches save.
        loss_ms: the time that all switches cost.
    """

    indices: frozenset[int] = frozenset()
    num_kernels: int = 0
    saved_bytes: int = 0
    loss_ms: float = 0.0

    @property
    def _value(self) -> tuple[int, float, int]:
        return self.saved_bytes, -self.loss_ms, -len(self.indices)


def best_switches(tasks: Sequence[Candidate], *, kernel_limit: int, start_ms: float = 0.0) -> Switches:
    """Returns the switches that save most memory. No switch makes a task end after its ``latest_ms``.

    Args:
        tasks: the tasks in the order in which they run.
        kernel_limit: how many kernels may be switched (Guideline 2, Eq. 11).
        start_ms: when the first task begins.
    """
    states, end_ms = [Switches()], start_ms  # the first state has no switch and delays nothing
    for index, task in enumerate(tasks):
        end_ms += task.response_ms
        if task.loss_ms is not None:
            states += [
                Switches(
                    state.indices | {index},
                    state.num_kernels + task.num_kernels,
                    state.saved_bytes + task.saved_bytes,
                    state.loss_ms + task.loss_ms,
                )
                for state in states
                if state.num_kernels + task.num_kernels <= kernel_limit
            ]
        kept = [state for state in states if not (state.indices and end_ms + state.loss_ms > task.latest_ms)]
        states = _undominated(kept) or [Switches()]
    return max(states, key=lambda state: state._value)


def all_in_time(tasks: Sequence[Candidate], *, start_ms: float) -> bool:
    """Returns whether all tasks end by their ``latest_ms`` without any switch. The first one begins at ``start_ms``."""
    end_ms = start_ms
    for task in tasks:
        end_ms += task.response_ms
        if not end_ms <= task.latest_ms:
            return False
    return True


def _undominated(states: Iterable[Switches]) -> list[Switches]:
    """Returns the states that beat every better one in lost time or in switched kernels; at most ``MAX_STATES``."""
    found: list[Switches] = []
    for state in sorted(states, key=lambda state: state._value, reverse=True):
        if not any(other.num_kernels <= state.num_kernels and other.loss_ms <= state.loss_ms for other in found):
            found.append(state)
    return found if len(found) <= MAX_STATES else [*found[: MAX_STATES - 1], found[-1]]
