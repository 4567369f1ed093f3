from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.search.dynamic_programming import best_chain

OPTIONS = "abc"
Conversions = list[dict[tuple[str, str], float]]
SECONDS = st.floats(0, 10) | st.just(math.inf)


def total(costs: list[dict[str, float]], conversions: Conversions, options: tuple[str, ...]) -> float:
    return sum(cost[option] for cost, option in zip(costs, options, strict=True)) + sum(
        conversions[index + 1][pair] for index, pair in enumerate(itertools.pairwise(options))
    )


@given(st.data())
def test_no_chain_is_better_than_the_best(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 5))
    some = st.dictionaries(st.sampled_from(OPTIONS), SECONDS, min_size=1)
    costs = data.draw(st.lists(some, min_size=length, max_size=length))
    pairs = list(itertools.product(OPTIONS, OPTIONS))
    conversions = [{pair: data.draw(SECONDS) for pair in pairs} for _ in range(length)]
    found, options = best_chain(costs, lambda index, one, other: conversions[index][one, other])
    brute = min(total(costs, conversions, choice) for choice in itertools.product(*costs))
    assert found == pytest.approx(brute)
    assert total(costs, conversions, tuple(options)) == pytest.approx(brute)


def test_faster_option_is_avoided_if_conversion_costs_more() -> None:
    costs = [{"a": 1.0, "b": 5.0}, {"a": 3.0, "b": 2.0}, {"a": 1.0, "b": 5.0}]
    expensive = best_chain(costs, lambda index, one, other: 0.0 if one == other else 0.6)
    assert expensive == (5.0, ["a", "a", "a"])
    cheap = best_chain(costs, lambda index, one, other: 0.0 if one == other else 0.4)
    assert cheap[1] == ["a", "b", "a"]
    assert cheap[0] == pytest.approx(4.8)


def test_ends_of_chains() -> None:
    assert best_chain([], lambda index, one, other: 0.0) == (0.0, [])
    with pytest.raises(ValueError, match="segment 1 has no option"):
        best_chain([{"a": 1.0}, {}], lambda index, one, other: 0.0)
