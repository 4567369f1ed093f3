"""Which of two plans is better, by drawn timelines: for the engine, for frames a second, and for the age of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.server.improving.measures import (
    MIN_ENGINE_GAIN,
    MIN_PAIRS,
    MIN_SPLIT_GAIN,
    BackboneMeasure,
    BatchSample,
    CoolMeasure,
    GoalMeasure,
    Turn,
)
from split_infer_ros.server.improving.turns import MAX_PAIRS, Turns, Verdict
from split_infer_ros.split.planner import Goal, Objective
from split_infer_ros.telemetry.heat import Processor

BATCHES = 20
SECONDS = st.floats(1e-3, 1.0)


def turn(period_s: float, age_s: float, *, latency_s: float = 0.01, num_images: int = 1) -> list[BatchSample]:
    """Returns the batches of a turn, which come at a steady rate."""
    return [BatchSample(index * period_s * num_images, num_images, 0.01, latency_s, age_s) for index in range(BATCHES)]


def gain(goal: Goal, incumbent: Turn, rival: Turn) -> float:
    gains = GoalMeasure(goal).gains([(incumbent, rival)] * MIN_PAIRS)
    assert len(set(gains)) == 1
    return gains[0]


def test_another_engine_is_compared_by_its_time_in_the_backbone() -> None:
    def batches(backbone_s: float) -> Sequence[BatchSample]:
        return [BatchSample(float(index), 1, backbone_s, 1.0, 1.0) for index in range(BATCHES)]

    assert BackboneMeasure().gains([(batches(0.2), batches(0.1)), (batches(0.1), batches(0.4))]) == [2.0, 0.25]
    assert BackboneMeasure().min_gain == MIN_ENGINE_GAIN


def test_throughput_counts_images_and_not_batches() -> None:
    goal = Goal(Objective.THROUGHPUT)
    assert gain(goal, turn(0.01, 0.1), turn(0.008, 0.9, num_images=8)) == pytest.approx(1.25)


@pytest.mark.parametrize("objective", list(Objective))
def test_age_decides_if_both_deliver_what_comes(objective: Objective) -> None:
    assert gain(Goal(objective), turn(0.066, 0.05), turn(0.067, 0.045)) == pytest.approx(0.05 / 0.045)


def test_latency_takes_younger_results_before_more_frames() -> None:
    goal = Goal(Objective.LATENCY)
    assert gain(goal, turn(0.01, 0.05), turn(0.005, 0.06)) == pytest.approx(0.05 / 0.06)
    assert gain(goal, turn(0.01, 0.05), turn(0.02, 0.04)) == pytest.approx(0.05 / 0.04)


def test_balanced_takes_more_frames_within_a_limit_of_age() -> None:
    goal, limit = Goal(), Objective.BALANCED.latency_limit
    assert gain(goal, turn(0.01, 0.05), turn(0.005, 0.05 * 0.99 * limit)) == pytest.approx(2.0)
    assert gain(goal, turn(0.01, 0.05), turn(0.001, 0.05 * 2 * limit)) == pytest.approx(0.5)
    assert gain(goal, turn(0.001, 0.05 * 2 * limit), turn(0.01, 0.05)) == pytest.approx(2.0)


@pytest.mark.parametrize("objective", list(Objective))
def test_a_plan_beyond_the_bound_loses_to_one_of_lower_latency(objective: Objective) -> None:
    goal = Goal(objective, latency_bound_s=0.1)
    slow, quick = turn(0.001, 0.01, latency_s=0.2), turn(0.1, 0.5, latency_s=0.05)
    assert gain(goal, quick, slow) == pytest.approx(0.25)
    assert gain(goal, slow, quick) == pytest.approx(4.0)


@given(
    objective=st.sampled_from(Objective),
    bound_s=st.one_of(st.just(math.inf), SECONDS),
    period_s=SECONDS,
    age_s=SECONDS,
    latency_s=SECONDS,
)
def test_equal_plans_make_no_winner(
    objective: Objective, bound_s: float, period_s: float, age_s: float, latency_s: float
) -> None:
    same = turn(period_s, age_s, latency_s=latency_s)
    assert gain(Goal(objective, bound_s), same, same) == pytest.approx(1.0)


@given(objective=st.sampled_from(Objective), first=st.tuples(SECONDS, SECONDS), second=st.tuples(SECONDS, SECONDS))
def test_who_wins_does_not_depend_on_who_came_first(
    objective: Objective, first: tuple[float, float], second: tuple[float, float]
) -> None:
    goal = Goal(objective)
    there, back = gain(goal, turn(*first), turn(*second)), gain(goal, turn(*second), turn(*first))
    assert there * back == pytest.approx(1.0)


@pytest.mark.parametrize(("rival_s", "wins"), [(0.009, True), (0.0097, True), (0.0099, False), (0.011, False)])
def test_a_small_gain_is_enough_for_another_split_point(rival_s: float, wins: bool) -> None:
    """Frames come faster than both plans compute them."""
    assert run(Goal(Objective.THROUGHPUT), (0.01, 0.05), (rival_s, 0.05)).rival_wins is wins


def test_frames_decide_as_long_as_they_are_not_shown_to_be_equal() -> None:
    """Noise of a busy machine must not let the younger results of smaller batches win."""
    pairs = [(turn(0.01, 0.05), turn(0.01 * noise, 0.01)) for noise in (0.8, 0.9, 1.0, 1.1, 1.2, 1.3)]
    gains = GoalMeasure(Goal(Objective.THROUGHPUT)).gains(pairs)
    assert gains == pytest.approx([1 / noise for noise in (0.8, 0.9, 1.0, 1.1, 1.2, 1.3)])


def test_larger_batches_are_not_given_up_early_because_their_results_are_older() -> None:
    verdict = run(Goal(Objective.THROUGHPUT), (0.01, 0.05), (0.005, 5.0))
    assert verdict.rival_wins
    assert verdict.gain == pytest.approx(2.0)


def test_a_choice_that_is_much_worse_in_all_respects_is_given_up_early() -> None:
    verdict = run(Goal(Objective.THROUGHPUT), (0.01, 0.05), (0.02, 0.1))
    assert (verdict.gain, verdict.low) == (pytest.approx(0.5), 0.0)


def test_a_rival_with_more_frames_that_is_within_noise_wins_by_age() -> None:
    verdict = run(Goal(Objective.THROUGHPUT), (0.01, 0.05), (0.01 / 1.01, 0.03))
    assert verdict.rival_wins
    assert verdict.gain == pytest.approx(0.05 / 0.03)
    assert verdict.min_gain == MIN_SPLIT_GAIN


def run(goal: Goal, incumbent: tuple[float, float], rival: tuple[float, float]) -> Verdict:
    """Returns the verdict on two plans, each with a period and an age in seconds."""
    turns, now, count = Turns(GoalMeasure(goal)), 0.0, 0
    while (verdict := turns.verdict) is None:
        has_ended, of_rival = False, turns.rival_runs
        while not has_ended:
            period_s, age_s = rival if of_rival else incumbent
            now += period_s
            has_ended = turns.note(BatchSample(now, 1, 0.01, 0.01, age_s), of_rival=of_rival)
        count += 1
        assert count <= 2 * MAX_PAIRS
    return verdict


def busy_turn(period_s: float, cpu_s: float, *, latency_s: float = 0.01, num_images: int = 1) -> list[BatchSample]:
    """Returns the batches of a turn, of which each image takes so much CPU time."""
    return [
        replace(batch, cpu_s=100.0 + index * num_images * cpu_s)
        for index, batch in enumerate(turn(period_s, 0.1, latency_s=latency_s, num_images=num_images))
    ]


def cool_gain(incumbent: Turn, rival: Turn, hot: Processor = Processor.CPU, bound_s: float = math.inf) -> float:
    gains = CoolMeasure(hot, bound_s).gains([(incumbent, rival)] * MIN_PAIRS)
    assert len(set(gains)) == 1
    return gains[0]


@given(SECONDS, SECONDS, SECONDS, st.integers(1, 16))
def test_on_a_hot_cpu_its_time_for_an_image_counts(period_s: float, before_s: float, rival_s: float, size: int) -> None:
    found = cool_gain(busy_turn(period_s, before_s), busy_turn(period_s, rival_s, num_images=size))
    assert found == pytest.approx(before_s / rival_s)


@given(SECONDS, st.floats(1.04, 10.0), st.floats(1.0, 1e6))
def test_no_saving_pays_for_fewer_frames(period_s: float, slower: float, sparing: float) -> None:
    before, rival = busy_turn(period_s, 1.0), busy_turn(slower * period_s, 1.0 / sparing)
    for pairs in range(1, MAX_PAIRS + 1):
        gains = CoolMeasure(Processor.CPU).gains([(before, rival)] * pairs)
        assert max(gains) <= 1.0


def test_a_rival_that_breaks_the_latency_bound_loses() -> None:
    before, rival = busy_turn(0.1, 0.5, latency_s=0.02), busy_turn(0.1, 0.1, latency_s=0.05)
    assert cool_gain(before, rival, bound_s=0.05) == pytest.approx(5.0)
    assert cool_gain(before, rival, bound_s=0.04) == pytest.approx(0.4)
    late = busy_turn(0.1, 0.5, latency_s=0.06)  # the incumbent breaks it, too
    assert cool_gain(late, rival, bound_s=0.04) == pytest.approx(5.0)


def test_on_a_hot_gpu_the_time_in_the_backbone_counts() -> None:
    before = turn(0.1, 0.1)
    rival = [replace(batch, backbone_s=0.005) for batch in before]
    assert cool_gain(before, rival, hot=Processor.GPU) == pytest.approx(2.0)


def test_a_verdict_in_heat_says_what_the_gain_means() -> None:
    turns = Turns(CoolMeasure(Processor.CPU))
    now, cpu_s = 0.0, 0.0
    while turns.verdict is None:
        of_rival = turns.rival_runs
        now, cpu_s = now + 0.1, cpu_s + (0.02 if of_rival else 0.04)
        turns.note(BatchSample(now, 1, 0.01, 0.01, 0.1, cpu_s), of_rival=of_rival)
    assert turns.verdict.rival_wins
    assert str(turns.verdict) == "2.00 times as sparing of the CPU (2.00 to 2.00)"
