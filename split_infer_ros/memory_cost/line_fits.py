"""Fits lines through timings. The error of a timing is proportional to the timing, and some timings are outliers.

The fits use weighted medians: up to half of the weight may be wrong without much harm. Weights are inverse standard
errors, up to a common factor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """The line y = start + slope * x."""

    start: float
    slope: float

    def at(self, x: float) -> float:
        """Returns y at ``x``."""
        return self.start + self.slope * x


def weighted_median(values: Iterable[tuple[float, float]]) -> float:
    """Returns the median of (value, weight) pairs: half of the weight lies on either side. Without pairs, it is NaN."""
    ordered = sorted((value, weight) for value, weight in values if weight > 0)
    half = sum(weight for _, weight in ordered) / 2
    passed = 0.0
    for index, (value, weight) in enumerate(ordered):
        passed += weight
        if math.isclose(passed, half, rel_tol=1e-12):
            return (value + ordered[index + 1][0]) / 2
        if passed > half:
            return value
    return math.nan


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """Fits a line through (x, y > 0) points by Theil and Sen: its slope is the median slope of all pairs of points.

    Precise slopes have more weight. So the cost of a byte comes from large sizes, and the cost of a call from small
    sizes. If no two points differ in x, the line is NaN.
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
    """Fits y = min(slope * x, bound), a line that stops rising at a bound.

    Args:
        points: (x, y, scatter), sorted by x. The scatter is proportional to the standard error of y.

    Returns:
        Slope and bound. The bound is infinite unless at least two points lie on it. It is the mean of these points,
        weighted by inverse variance. A median would use only one of the few points that scatter least.
    """
    best = math.inf, math.nan, math.inf  # error, slope, bound
    for rising in (*range(1, len(points) - 1), len(points)):  # how many points lie below the bound
        slope = weighted_median((y / x, x / scatter) for x, y, scatter in points[:rising])
        bound = _weighted_mean([(y, scatter**-2) for _, y, scatter in points[rising:]])
        error = sum(abs(y - min(slope * x, bound)) / scatter for x, y, scatter in points)
        best = min(best, (error, slope, bound))
    _, slope, bound = best
    return slope, bound


def _weighted_mean(values: Sequence[tuple[float, float]]) -> float:
    """Returns the mean of (value, weight) pairs; infinite without pairs."""
    if not values:
        return math.inf
    return sum(value * weight for value, weight in values) / sum(weight for _, weight in values)
