"""Repeats measurements while their medians disagree. On a busy machine, chance would otherwise decide."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_SPREAD = 0.1  # between the medians of two groups, as a share of the lower
NUM_AGREEING = 3
MAX_GROUPS = 12  # a host with other guests may disturb every other group


@dataclass(frozen=True, slots=True)
class Measured:
    """Samples in seconds, and whether their groups disagree."""

    costs: tuple[float, ...]
    uncertain: bool


def measure_steadily(group: Callable[[], Sequence[float]], may_go_on: Callable[[], bool] = lambda: True) -> Measured:
    """Takes groups of samples until the three lowest medians agree. A disturbance can only make a group slower.

    Args:
        group: takes a group of samples, in seconds.
        may_go_on: asked before each group after the first three.

    Returns:
        The samples of the groups that agree. If twelve groups are not enough, all samples, marked uncertain.
    """
    groups = [tuple(group()) for _ in range(NUM_AGREEING)]
    while not _agreeing(groups):
        if len(groups) == MAX_GROUPS or not may_go_on():
            return Measured(tuple(cost for costs in groups for cost in costs), uncertain=True)
        groups.append(tuple(group()))
    return Measured(tuple(cost for costs in _agreeing(groups) for cost in costs), uncertain=False)


def _agreeing(groups: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    lowest = sorted(groups, key=statistics.median)[:NUM_AGREEING]
    first, last = statistics.median(lowest[0]), statistics.median(lowest[-1])
    return lowest if last <= first * (1 + MAX_SPREAD) else []
