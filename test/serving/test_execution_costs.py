from __future__ import annotations

import math

import pytest

from split_infer_ros.serving.execution_costs import ExecutionCosts, group

COSTS = ExecutionCosts(
    {"a": 10, "b": 20, "c": 60},
    {"a": {2: 2.0, 4: 3.0}, "b": {1: 1.0}, "c": {1: 5.0}},
    {group({"b": 1, "a": 2}): 2.4},
)


@pytest.mark.parametrize(
    ("model", "count", "seconds"), [("a", 2, 2.0), ("a", 3, 2.5), ("a", 1, 1.0), ("a", 8, 6.0), ("b", 3, 3.0)]
)
def test_a_batch_that_was_not_measured_lies_between_those_that_were(model: str, count: int, seconds: float) -> None:
    assert COSTS.batch_s(model, count) == pytest.approx(seconds)


def test_what_fusing_gained_once_it_gains_for_other_sizes() -> None:
    assert COSTS.execution_s({"a": 2, "b": 1}) == 2.4
    assert COSTS.execution_s({"a": 4, "b": 1}) == pytest.approx(4.0 * 0.8)
    assert COSTS.execution_s({"a": 2, "c": 1}) == 7.0, "never measured: one after the other"
    assert COSTS.execution_s({"c": 1}) == 5.0
    assert COSTS.execution_s({}) == 0.0


def test_small_is_less_than_the_mean_of_those_that_are_loaded() -> None:
    assert [COSTS.is_small(model) for model in "abc"] == [True, True, False]
    two = ExecutionCosts({"a": 10, "b": 20}, {"a": {1: 1.0}, "b": {1: 1.0}})
    assert [two.is_small(model) for model in "ab"] == [True, False]
    assert not ExecutionCosts({"a": 10}, {"a": {1: 1.0}}).is_small("a")


@pytest.mark.parametrize("measured", [{}, {0: 1.0}, {1: 0.0}, {1: math.nan}, {1: math.inf}])
def test_costs_that_are_none_are_refused(measured: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="Costs of a"):
        ExecutionCosts({"a": 1}, {"a": measured})


def test_the_best_batch_is_one_that_was_measured() -> None:
    assert [COSTS.best_image_s(model) for model in "abc"] == [0.75, 1.0, 5.0]


def test_no_batch_is_larger_than_saves_time() -> None:
    costs = ExecutionCosts({"a": 1}, {"a": {1: 1.0, 2: 2.0, 4: 2.4, 8: 4.7}})
    assert [costs.best_size("a", most) for most in (1, 2, 4, 20)] == [1, 1, 4, 4]  # 0.6 and 0.5875 an image
    assert COSTS.best_size("b", 5) == 1, "beyond what was measured nothing is saved"
