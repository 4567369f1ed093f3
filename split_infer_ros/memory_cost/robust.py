"""Lines through timings whose errors are in proportion to them, and some of which are far off.

Weighted medians throughout: half of the weight may be wrong without much harm. Weights are inverse standard errors,
up to the common factor by which timings scatter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """y = start + slope * x."""

    start: float
    slope: float

    def at(self, x: float) -> float:
        """Its y."""
        return self.start + self.slope * x


def weighted_median(values: Iterable[tuple[float, float]]) -> float:
    """Of (value, weight) pairs, the value with half of the weight on either side; NaN of none."""
    ordered = sorted((value, weight) for value, weight in values if weight > 0)
    half = sum(weight for _, weight in ordered) / 2
    passed = 0.0
    for place, (value, weight) in enumerate(ordered):
        passed += weight
        if math.isclose(passed, half, rel_tol=1e-12):
            return (value + ordered[place + 1][0]) / 2
        if passed > half:
            return value
    return math.nan


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """The line through (x, y > 0) points, by Theil and Sen: the median of the slopes of all pairs; NaN without any.

    A slope counts by its precision, so that a cost of each byte is found between the large ones and a cost of each
    call at the small ones.
    """
    slope = weighted_median(
        ((other_y - y) / (other_x - x), abs(other_x - x) / math.hypot(y, other_y))
        for (x, y), (other_x, other_y) in itertools.combinations(points, 2)
        if x != other_x
    )
    if math.isnan(slope):
        return Line(math.nan, math.nan)
    return Line(weighted_median((y - slope * x, 1 / y) for x, y in points), slope)


def fit_bounded(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Slope and bound of y = min(slope * x, bound) through (x, y, scatter) points in the order of x.

    The bound is infinite unless two points or more lie on it. It is their mean, by inverse variance: what little they
    know of it lies in the few that scatter least, of which a median takes but one.
    """
    best = math.inf, math.nan, math.inf
    for rising in (*range(1, len(points) - 1), len(points)):
        slope = weighted_median((y / x, x / scatter) for x, y, scatter in points[:rising])
        bound = _weighted_mean([(y, scatter**-2) for _, y, scatter in points[rising:]])
        off = sum(abs(y - min(slope * x, bound)) / scatter for x, y, scatter in points)
        best = min(best, (off, slope, bound))
    return best[1:]


def _weighted_mean(values: Sequence[tuple[float, float]]) -> float:
    """Of (value, weight) pairs; infinite of none."""
    return sum(value * weight for value, weight in values) / sum(weight for _, weight in values) if values else math.inf
