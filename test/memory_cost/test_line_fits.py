from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.memory_cost.line_fits import Line, fit_bounded, fit_line, weighted_median

SIZES = [4096 << power for power in range(13)]


def test_a_weighted_median_halves_the_weight() -> None:
    assert weighted_median([(3.0, 1), (1.0, 1), (2.0, 1)]) == 2
    assert weighted_median([(1.0, 1), (2.0, 1), (4.0, 1), (9.0, 1)]) == 3
    assert weighted_median([(1.0, 5), (2.0, 1), (3.0, 1)]) == 1
    assert weighted_median([(1.0, 0), (2.0, 1)]) == 2
    assert math.isnan(weighted_median([]))


@given(st.floats(1e-3, 1), st.floats(1e-9, 1e-6))
def test_one_outlier_does_not_move_the_line(start: float, slope: float) -> None:
    points = [(float(size), start + slope * size) for size in SIZES]
    for index in range(len(points)):
        spoiled = [(x, y * 5 if place == index else y) for place, (x, y) in enumerate(points)]
        found = fit_line(spoiled)
        assert found.slope == pytest.approx(slope, rel=0.01)
        assert found.at(0) == pytest.approx(start, rel=0.01)


def test_one_x_alone_gives_no_line() -> None:
    for points in ([], [(1.0, 2.0)], [(1.0, 2.0), (1.0, 3.0)]):
        assert math.isnan(fit_line(points).slope)
    assert fit_line([(1.0, 3.0), (3.0, 7.0)]) == Line(1.0, 2.0)


@pytest.mark.parametrize("bound", [0.02, 0.1, 0.5, math.inf])
def test_an_existing_bound_is_found(bound: float) -> None:
    points = [(float(size), min(1e-7 * size, bound), 0.01 + 1e-8 * size) for size in SIZES]
    assert fit_bounded(points) == pytest.approx((1e-7, bound))


def test_one_point_is_no_bound() -> None:
    *line, last = ((float(size), 1e-7 * size, 1e-7 * size) for size in SIZES)
    assert fit_bounded([*line, (last[0], 0.8 * last[1], last[2])]) == pytest.approx((1e-7, math.inf))
