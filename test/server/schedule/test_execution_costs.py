"""Costs of batches and fused executions, measured and estimated."""

from __future__ import annotations

import math

import pytest

from split_infer_ros.server.schedule.execution_costs import ExecutionCosts, combination_of

COSTS = ExecutionCosts(
    {"a": 10, "b": 20, "c": 60},
    {"a": {2: 2.0, 4: 3.0}, "b": {1: 1.0}, "c": {1: 5.0}},
    {combination_of({"b": 1, "a": 2}): 2.4},
)


@pytest.mark.parametrize(
    ("model", "count", "seconds"), [("a", 2, 2.0), ("a", 3, 2.5), ("a", 1, 1.0), ("a", 8, 6.0), ("b", 3, 3.0)]
)
def test_unmeasured_batch_is_interpolated(model: str, count: int, seconds: float) -> None:
    assert COSTS.batch_s(model, count) == pytest.approx(seconds)


def test_gain_of_fusing_holds_for_other_batch_sizes() -> None:
    assert COSTS.execution_s({"a": 2, "b": 1}) == 2.4
    assert COSTS.execution_s({"a": 4, "b": 1}) == pytest.approx(4.0 * 0.8)
    assert COSTS.execution_s({"a": 2, "c": 1}) == 7.0, "never measured: one after the other"
    assert COSTS.execution_s({"c": 1}) == 5.0
    assert COSTS.execution_s({}) == 0.0


def test_small_models_have_fewer_parameters_than_the_mean() -> None:
    assert [COSTS.is_small(model) for model in "abc"] == [True, True, False]
    two = ExecutionCosts({"a": 10, "b": 20}, {"a": {1: 1.0}, "b": {1: 1.0}})
    assert [two.is_small(model) for model in "ab"] == [True, False]
    assert not ExecutionCosts({"a": 10}, {"a": {1: 1.0}}).is_small("a")


@pytest.mark.parametrize("measured", [{}, {0: 1.0}, {1: 0.0}, {1: math.nan}, {1: math.inf}])
def test_impossible_costs_are_refused(measured: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="Costs of a"):
        ExecutionCosts({"a": 1}, {"a": measured})


def test_an_image_costs_what_it_costs_alone() -> None:
    assert [COSTS.image_s(model) for model in "abc"] == [COSTS.batch_s(model, 1) for model in "abc"] == [1.0, 1.0, 5.0]


def test_best_batch_is_no_larger_than_saves_time() -> None:
    costs = ExecutionCosts({"a": 1}, {"a": {1: 1.0, 2: 2.0, 4: 2.4, 8: 4.7}})
    sizes = [costs.best_batch_size("a", max_batch_size) for max_batch_size in (1, 2, 4, 20)]
    assert sizes == [1, 1, 4, 4], "an image takes 0.6 in a batch of 4, and 0.5875 in one of 8"
    assert COSTS.best_batch_size("b", 5) == 1, "beyond what was measured nothing is saved"


def test_padded_batch_costs_what_its_graph_costs() -> None:
    """A recorded batch of one model is padded beyond 8 images, a batch of several models always."""
    sizes = {size: float(size) for size in (*range(1, 9), 16)}
    costs = ExecutionCosts(
        {"a": 1, "b": 1}, {"a": sizes, "b": sizes}, {combination_of({"a": 4, "b": 1}): 4.0}, pads=True
    )
    assert [costs.batch_s("a", count) for count in (3, 5, 8, 9, 16)] == [3.0, 5.0, 8.0, 16.0, 16.0]
    assert costs.execution_s({"a": 5}) == 5.0
    assert costs.execution_s({"a": 3, "b": 1}) == 4.0, "as measured for four and one"
    assert costs.execution_s({"a": 3, "b": 3}) == pytest.approx(0.8 * 8.0)
    assert costs.best_batch_size("a", 12) == 1
