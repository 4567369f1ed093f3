"""Intervals cover the true value as often as they should, and shrink with more turns."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.estimate import (
    MIN_BLOCKS,
    Estimate,
    block_length,
    estimate,
    exact,
    maximum,
    mean,
    median,
    minimum,
    over_turns,
    p99,
    ratio,
    together,
)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    chance = np.random.default_rng(1)
    found = [median(chance.normal(5.0, 1.0, 40)) for _ in range(200)]
    covered = sum(each.low <= 5.0 <= each.high for each in found)
    assert covered >= 0.88 * 200  # 0.95 in the limit; the percentile method has a little less at 40 turns


def test_slow_moments_that_last_widen_the_interval() -> None:
    """A machine that is slow for five turns in a row gives fewer independent samples than turns."""
    chance = np.random.default_rng(2)
    steady = chance.normal(0.0, 1.0, 400)
    lasting = np.repeat(chance.normal(0.0, 1.0, 80), 5)
    assert mean(lasting).width * abs(mean(lasting).value) > 1.5 * mean(steady).width * abs(mean(steady).value)


def test_machine_that_gets_slower_does_not_change_a_ratio() -> None:
    slower = np.linspace(1.0, 3.0, 30)
    found = ratio(2.0 * slower, slower)
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)  # exact: doubling and halving round nothing


def test_same_samples_give_the_same_interval() -> None:
    samples = np.random.default_rng(3).normal(1.0, 0.1, 25)
    assert median(samples) == median(samples)


@given(st.integers(1, 5000))
def test_a_long_run_has_ten_blocks_at_least(turns: int) -> None:
    length = block_length(turns)
    assert 1 <= length <= turns
    assert turns < MIN_BLOCKS or turns // length >= MIN_BLOCKS


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=60))
def test_the_value_lies_in_its_interval(samples: list[float]) -> None:
    found = median(samples)
    assert found.low <= found.value <= found.high
    # Percentiles are interpolated between samples, which rounds in the last place.
    assert min(samples) <= found.low * (1 + 1e-12)
    assert found.high <= max(samples) * (1 + 1e-12)
    assert found.is_sound is (len(samples) >= MIN_BLOCKS)


def test_one_turn_is_no_sound_figure() -> None:
    assert median([4.0]) == Estimate(4.0, 4.0, 4.0, turns=1, blocks=1)
    assert not median([4.0]).is_sound
    assert median([4.0]).width == math.inf


def test_no_turns_give_nan() -> None:
    found = median([])
    assert math.isnan(found.value)
    assert not found.is_sound


def test_counted_figures_need_no_turns() -> None:
    assert exact(3.0).is_exact
    assert exact(3.0).is_sound
    assert exact(3.0).width == 0.0


def test_rivals_without_a_common_turn_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, 3\] turns"):
        ratio([1.0, 2.0], [1.0, 2.0, 3.0])


def test_a_figure_is_converted_to_another_unit() -> None:
    turned = Estimate(2.0, 1.0, 4.0, 20, 10).times(-100.0, plus=50.0)
    assert turned == Estimate(-150.0, -350.0, -50.0, 20, 10)


def test_extremes_have_the_fewest_blocks_of_their_figures() -> None:
    found = [Estimate(2.0, 1.5, 3.0, 40, 13), Estimate(2.5, 1.0, 2.8, 10, 10), exact(9.0)]
    assert minimum(found) == Estimate(2.0, 1.0, 2.8, 10, 10)
    assert maximum(found) == Estimate(9.0, 9.0, 9.0, 10, 10)
    assert math.isnan(minimum([*found, median([])]).value)


def test_a_statistic_of_several_quantities() -> None:
    found = estimate(lambda a, b: np.median(a, axis=-1) - np.median(b, axis=-1), [5.0] * 12, [3.0] * 12)
    assert (found.value, found.low, found.high, found.turns) == (2.0, 2.0, 2.0, 12)


def test_percentile_over_turns_is_that_of_all_their_frames() -> None:
    rng = np.random.default_rng(0)
    turns = [list(rng.exponential(1.0, 50)) for _ in range(20)]
    found = over_turns(lambda chosen: p99(together(turns, chosen)), len(turns))
    assert found.value == pytest.approx(np.percentile(np.concatenate(turns), 99))
    assert found.low < found.value < found.high
    assert found.turns == 20
