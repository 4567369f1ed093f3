"""Measured again where medians disagree, since a busy machine would else choose by chance."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDEST = 0.1  # between the medians of two groups, as a part of the lower
GROUPS = 3
MOST_GROUPS = 12  # a host with other guests may disturb every other one


@dataclass(frozen=True, slots=True)
class Measured:
    """Samples, seconds, and whether their groups disagree."""

    costs: tuple[float, ...]
    uncertain: bool


def measure_steadily(group: Callable[[], Sequence[float]], may_go_on: Callable[[], bool] = lambda: True) -> Measured:
    """Take groups of samples until the lowest three medians agree: what disturbs only ever takes longer.

    Args:
        group: takes some samples, seconds.
        may_go_on: asked before each group beyond the first three.

    Returns:
        The samples of the groups that agree; of all, marked uncertain, where twelve groups were not enough.
    """
    groups = [tuple(group()) for _ in range(GROUPS)]
    while not _agreeing(groups):
        if len(groups) == MOST_GROUPS or not may_go_on():
            return Measured(tuple(cost for costs in groups for cost in costs), uncertain=True)
        groups.append(tuple(group()))
    return Measured(tuple(cost for costs in _agreeing(groups) for cost in costs), uncertain=False)


def _agreeing(groups: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    lowest = sorted(groups, key=statistics.median)[:GROUPS]
    first, last = statistics.median(lowest[0]), statistics.median(lowest[-1])
    return lowest if last <= first * (1 + WIDEST) else []
