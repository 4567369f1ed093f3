from __future__ import annotations

import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.telemetry.window import Window


def test_percentiles_are_those_of_the_samples() -> None:
    window = Window()
    for value in range(101):
        window.add(float(value), now=1.0)
    assert window.percentiles(0, 50, 99, 100, now=1.0) == (0.0, 50.0, 99.0, 100.0)
    assert window.mean(now=1.0) == 50.0


def test_old_samples_no_longer_count() -> None:
    window = Window(seconds=10.0)
    for time, value in ((0.0, 100.0), (5.0, 1.0), (6.0, 3.0)):
        window.add(value, now=time)
    assert window.mean(now=9.999) == 104 / 3
    assert window.mean(now=10.0) == 2.0
    assert window.percentiles(100, now=15.5) == (3.0,)


def test_without_samples_the_figures_are_nan() -> None:
    window = Window(seconds=1.0)
    assert math.isnan(window.mean(now=0.0))
    window.add(1.0, now=0.0)
    assert all(math.isnan(value) for value in window.percentiles(50, 99, now=1.0))


def test_only_the_newest_are_kept() -> None:
    window = Window(max_samples=3)
    for value in range(10):
        window.add(float(value), now=0.0)
    assert window.percentiles(0, 100, now=0.0) == (7.0, 9.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_the_median_is_correct(values: list[float]) -> None:
    window = Window()
    for value in values:
        window.add(value, now=0.0)
    (median,) = window.percentiles(50, now=0.0)
    assert math.isclose(median, statistics.median(values), rel_tol=1e-9, abs_tol=1e-6)


def test_old_samples_take_no_memory() -> None:
    window = Window(seconds=10.0)
    for second in range(1000):
        window.add(1.0, now=float(second))
    assert window.num_samples == 10
