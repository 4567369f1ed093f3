"""Repeats measurements while they disagree. Otherwise, chance would decide on a busy machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

MAX_SPREAD = 0.1  # the most that the costs of two agreeing results differ, as a share of the lower cost
NUM_AGREEING = 3
MAX_RESULTS = 12  # a host with other guests may disturb every second measurement

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a measurement.

    Attributes:
        costs: the samples, in seconds.
        uncertain: whether the groups of samples disagree.
    """

    costs: tuple[float, ...]
    uncertain: bool

    def as_json(self) -> dict[str, Any]:
        """Returns both fields as plain JSON values."""
        return {"costs": list(self.costs), "uncertain": self.uncertain}


def measure_steadily(group: Callable[[], Sequence[float]], may_go_on: Callable[[], bool] = lambda: True) -> Measured:
    """Takes groups of samples until the three lowest medians agree: they differ by at most ``MAX_SPREAD``, 10 %.

    Args:
        group: takes a group of samples and returns it, in seconds.
        may_go_on: asked before each group after the first three; False ends the measurement.

    Returns:
        The samples of the three groups that agree. If no three of at most twelve groups agree, all samples, marked as
        uncertain.
    """
    groups, agree = repeat_until_steady(group, statistics.median, may_go_on=may_go_on)
    return Measured(tuple(cost for costs in groups for cost in costs), uncertain=not agree)


def repeat_until_steady(
    measure: Callable[[], Result],
    cost_of: Callable[[Result], float],
    *,
    num_agreeing: int = NUM_AGREEING,
    may_go_on: Callable[[], bool] = lambda: True,
) -> tuple[list[Result], bool]:
    """Repeats a measurement until its lowest costs agree: they differ by at most ``MAX_SPREAD``, 10 %.

    The higher costs are ignored, because a disturbance can only raise a cost.

    Args:
        measure: takes one measurement and returns its result.
        cost_of: returns the cost of a result.
        num_agreeing: how many of the lowest costs must agree.
        may_go_on: asked before each measurement after the first ``num_agreeing``; False ends the measurement.

    Returns:
        The ``num_agreeing`` results with the lowest costs, and True. If these do not agree after twelve results, or
        when ``may_go_on`` ends the measurement: all results, and False.
    """
    results = [measure() for _ in range(num_agreeing)]
    while True:
        lowest = sorted(results, key=cost_of)[:num_agreeing]
        if cost_of(lowest[-1]) <= cost_of(lowest[0]) * (1 + MAX_SPREAD):
            return lowest, True
        if len(results) >= MAX_RESULTS or not may_go_on():
            return results, False
        results.append(measure())
