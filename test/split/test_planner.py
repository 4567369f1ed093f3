from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.planner import LATENCY, OBJECTIVES, THROUGHPUT, SplitChoice, plan, worth_a_run
from split_infer_ros.split.profile import CoRun, Profile, ProfilePoint

APART = CoRun()


def profile(*rows: tuple[str, int, float, float], co_run: CoRun = APART) -> Profile:
    points = tuple(
        ProfilePoint(split_point, batch, 1, 0.0, backbone_s, 0.0, head_s, 0.0)
        for split_point, batch, backbone_s, head_s in rows
    )
    return Profile("m", "cuda", points, co_run)


HAND_MADE = profile(
    ("input", 1, 0.0, 9.0), ("middle", 1, 2.0, 3.0), ("late", 1, 3.5, 1.0), ("output", 1, 4.0, 0.5),
    ("input", 8, 1.0, 70.0), ("middle", 8, 6.0, 20.0), ("late", 8, 8.0, 7.0), ("output", 8, 10.0, 3.0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("objective", "bound", "batches", "expected"),
    [
        (THROUGHPUT, math.inf, None, SplitChoice("late", 8, 1.0, 15.0)),
        (THROUGHPUT, 14.0, None, SplitChoice("output", 8, 0.8, 13.0)),
        (THROUGHPUT, 12.0, None, SplitChoice("middle", 1, 1 / 3, 5.0)),
        (THROUGHPUT, 4.7, None, SplitChoice("late", 1, 1 / 3.5, 4.5)),
        (THROUGHPUT, 4.0, None, SplitChoice("output", 1, 1 / 4, 4.5, False)),
        (THROUGHPUT, 4.0, [8], SplitChoice("output", 8, 0.8, 13.0, False)),
        (THROUGHPUT, math.inf, [1], SplitChoice("middle", 1, 1 / 3, 5.0)),
        (LATENCY, math.inf, [8], SplitChoice("output", 8, 0.8, 13.0)),
    ],
)
def test_plans_that_can_be_made_by_hand(objective, bound, batches, expected):
    found = plan(HAND_MADE, objective, bound, batches)
    if expected.latency_s == 4.5:  # late and output are as quick: the one of the higher throughput
        assert found.split_point == ("late" if found.throughput == pytest.approx(1 / 3.5) else "output")
        assert found.latency_s == 4.5
        assert found.within_bound == expected.within_bound
    else:
        assert found == expected


def test_of_two_as_quick_the_one_of_higher_throughput():
    assert plan(HAND_MADE, LATENCY).split_point == "late"
    assert plan(profile(("a", 1, 2.0, 1.0), ("b", 1, 1.0, 2.0), ("c", 1, 2.0, 0.5))).split_point == "c"


def test_stages_that_share_cores_are_better_not_split():
    rows = [("middle", 1, 2.0, 3.0), ("output", 1, 4.0, 0.1)]
    assert plan(profile(*rows)).split_point == "middle"
    assert plan(profile(*rows, co_run=CoRun(0.5, 0.5))).split_point == "output"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("speed",), "objective 'speed'.*throughput, latency"), ((THROUGHPUT, math.inf, [2, 3]), "2, 3, only at 1, 8")],
)
def test_what_cannot_be_planned_is_refused_with_a_sentence(arguments, words):
    with pytest.raises(ConfigurationError, match=words):
        plan(HAND_MADE, *arguments)


rows = st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([1, 2, 4]), st.floats(1e-3, 1), st.floats(1e-3, 1))


@given(
    st.lists(rows, min_size=1, unique_by=lambda row: row[:2]),
    st.sampled_from(OBJECTIVES),
    st.floats(0, 3),
    st.floats(0.5, 1),
)
def test_nothing_that_was_measured_beats_the_plan(rows, objective, bound, rate):
    measured = profile(*rows, co_run=CoRun(rate, rate))
    found = plan(measured, objective, bound)
    chosen = measured.point(found.split_point, found.batch_size)
    assert chosen is not None
    assert (found.throughput, found.latency_s) == (measured.throughput(chosen), measured.latency_s(chosen))
    assert found.within_bound == (found.latency_s <= bound)
    fitting = [point for point in measured.points if measured.latency_s(point) <= bound]
    assert bool(fitting) == found.within_bound
    if objective == LATENCY or not fitting:
        assert all(measured.latency_s(point) >= found.latency_s for point in measured.points)
    else:
        assert all(measured.throughput(point) <= found.throughput for point in fitting)


def test_cuts_that_are_nearly_the_best_have_turns_until_each_is_known():
    known = profile(("a", 1, 10.0, 1.0), ("b", 1, 10.5, 1.0), ("c", 1, 12.0, 1.0), ("a", 2, 1.0, 1.0))
    runs: Counter[str] = Counter()
    turns = []
    while point := worth_a_run(known, 1, runs, repeats=2):
        turns.append(point.split_point)
        runs[point.split_point] += 1
    assert turns == ["a", "b", "a", "b"]
    assert worth_a_run(known, 4, {}, 1) is None


@given(st.lists(st.floats(1.0, 2.0), min_size=1, max_size=10), st.integers(0, 9), st.integers(0, 2))
def test_one_slow_run_does_not_hide_the_best_cut(periods, slow_split_point, slow_run):
    known = profile(*((str(split_point), 1, period, 0.1) for split_point, period in enumerate(periods)))
    seen: dict[str, list[float]] = {}
    while point := worth_a_run(known, 1, {split_point: len(found) for split_point, found in seen.items()}, repeats=3):
        found = seen.setdefault(point.split_point, [])
        assert len(found) < 3
        slow = (int(point.split_point), len(found)) == (slow_split_point, slow_run)
        found.append(periods[int(point.split_point)] * (2 if slow else 1))
        known = known.with_point(replace(point, period_s=statistics.median(found)))
    assert periods[int(plan(known).split_point)] == min(periods)
