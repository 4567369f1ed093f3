from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.measurements import turns
from split_infer_ros.measurements.turns import median_interval, timed, timed_in_turns


def test_slow_calls_are_timed_once_and_quick_ones_often() -> None:
    assert len(timed(lambda: None, 0.0)) == 1
    assert len(timed(lambda: None, 10.0)) == turns.MAX_SAMPLES


def test_rivals_begin_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_TURNS", 3)
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    calls: list[str] = []
    found = timed_in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")})
    assert calls == list("aabb" + "bbaa" + "aabb")
    assert [len(times) for times in found.values()] == [3, 3]


def test_a_first_turn_is_always_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    assert len(timed_in_turns({"a": lambda: None}, lambda: False)["a"]) == 1


@pytest.mark.parametrize(
    ("count", "left_out"),
    [(5, None), (6, 0), (8, 0), (9, 1), (25, 7)],  # tables of the sign test: 95 %
)
def test_interval_of_a_median_leaves_out_the_extremes(count: int, left_out: int | None) -> None:
    low, high = median_interval([float(value) for value in range(count)])
    assert (low, high) == ((0.0, math.inf) if left_out is None else (left_out, count - 1 - left_out))


@given(st.lists(st.floats(0.1, 10), min_size=6, max_size=60))
def test_interval_holds_the_median(values: list[float]) -> None:
    low, high = median_interval(values)
    assert low <= statistics.median(values) <= high
