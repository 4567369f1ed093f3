from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.planner import (
    HOPELESS,
    SHORTLISTED,
    Objective,
    SplitChoice,
    coolest,
    next_to_run,
    plan,
    shortlist,
)
from split_infer_ros.split.profile import Profile, ProfilePoint, StageContention

SEPARATE = StageContention()


def profile(*rows: tuple[str, int, float, float], contention: StageContention = SEPARATE) -> Profile:
    points = tuple(
        ProfilePoint(
            split_point=split_point,
            batch_size=batch_size,
            bytes_per_image=1,
            preprocess_s=0.0,
            backbone_s=backbone_s,
            hand_over_s=0.0,
            head_s=head_s,
            decode_s=0.0,
        )
        for split_point, batch_size, backbone_s, head_s in rows
    )
    return Profile("m", "cuda", points=points, contention=contention)


HAND_MADE = profile(
    ("input", 1, 0.0, 9.0), ("middle", 1, 2.0, 3.0), ("late", 1, 3.5, 1.0), ("output", 1, 4.0, 0.5),
    ("input", 8, 1.0, 70.0), ("middle", 8, 6.0, 20.0), ("late", 8, 8.0, 7.0), ("output", 8, 10.0, 3.0),
)  # fmt: skip


def choice(
    split_point: str, batch_size: int, throughput: float, *, latency_s: float, within_bound: bool = True
) -> SplitChoice:
    return SplitChoice(
        split_point=split_point,
        batch_size=batch_size,
        throughput=throughput,
        latency_s=latency_s,
        within_bound=within_bound,
    )


@pytest.mark.parametrize(
    ("objective", "bound_s", "batch_sizes", "expected"),
    [
        (Objective.THROUGHPUT, math.inf, None, choice("late", 8, 1.0, latency_s=15.0)),
        (Objective.THROUGHPUT, 14.0, None, choice("output", 8, 0.8, latency_s=13.0)),
        (Objective.THROUGHPUT, 12.0, None, choice("middle", 1, 1 / 3, latency_s=5.0)),
        (Objective.THROUGHPUT, 4.7, None, choice("late", 1, 1 / 3.5, latency_s=4.5)),
        (Objective.THROUGHPUT, 4.0, None, choice("output", 1, 1 / 4, latency_s=4.5, within_bound=False)),
        (Objective.THROUGHPUT, 4.0, [8], choice("output", 8, 0.8, latency_s=13.0, within_bound=False)),
        (Objective.THROUGHPUT, math.inf, [1], choice("middle", 1, 1 / 3, latency_s=5.0)),
        (Objective.BALANCED, math.inf, None, choice("middle", 1, 1 / 3, latency_s=5.0)),
        (Objective.BALANCED, 4.7, None, choice("late", 1, 1 / 3.5, latency_s=4.5)),
        (Objective.BALANCED, 4.0, None, choice("output", 1, 1 / 4, latency_s=4.5, within_bound=False)),
        (Objective.BALANCED, math.inf, [8], choice("late", 8, 1.0, latency_s=15.0)),
        (Objective.LATENCY, math.inf, [8], choice("output", 8, 0.8, latency_s=13.0)),
    ],
)
def test_small_profiles_give_the_obvious_plans(objective, bound_s, batch_sizes, expected):
    found = plan(HAND_MADE, objective, bound_s, batch_sizes=batch_sizes)
    if expected.latency_s == 4.5:  # late and output are equally quick: the choice is the one of the higher throughput
        assert found.split_point == ("late" if found.throughput == pytest.approx(1 / 3.5) else "output")
        assert found.latency_s == 4.5
        assert found.within_bound == expected.within_bound
    else:
        assert found == expected


def test_of_two_equally_quick_the_higher_throughput_wins():
    assert plan(HAND_MADE, Objective.LATENCY).split_point == "late"
    assert plan(profile(("a", 1, 2.0, 1.0), ("b", 1, 1.0, 2.0), ("c", 1, 2.0, 0.5))).split_point == "c"


def test_stages_that_share_cores_are_not_split():
    rows = [("middle", 1, 2.0, 3.0), ("output", 1, 4.0, 0.1)]
    assert plan(profile(*rows)).split_point == "middle"
    assert plan(profile(*rows, contention=StageContention(0.5, 0.5))).split_point == "output"


def test_unmeasured_batch_sizes_are_refused():
    with pytest.raises(ConfigurationError, match="2, 3, only at 1, 8"):
        plan(HAND_MADE, batch_sizes=[2, 3])


ROWS = st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([1, 2, 4]), st.floats(1e-3, 1), st.floats(1e-3, 1))


@given(
    st.lists(ROWS, min_size=1, unique_by=lambda row: row[:2]),
    st.sampled_from(Objective),
    st.floats(0, 3),
    st.floats(0.5, 1),
)
def test_no_measured_point_beats_the_plan(rows, objective, bound_s, rate):
    measured = profile(*rows, contention=StageContention(rate, rate))
    found = plan(measured, objective, bound_s)
    chosen = measured.point(found.split_point, found.batch_size)
    assert chosen is not None
    assert (found.throughput, found.latency_s) == (measured.throughput(chosen), measured.latency_s(chosen))
    assert found.within_bound == (found.latency_s <= bound_s)
    fitting = [point for point in measured.points if measured.latency_s(point) <= bound_s]
    assert bool(fitting) == found.within_bound
    lowest_s = min(measured.latency_s(point) for point in measured.points)
    if objective is Objective.LATENCY or not fitting:
        assert found.latency_s == lowest_s
    else:
        if objective is Objective.BALANCED:
            assert found.latency_s <= 1.2 * lowest_s
            fitting = [point for point in fitting if measured.latency_s(point) <= 1.2 * lowest_s]
        assert all(measured.throughput(point) <= found.throughput for point in fitting)


def test_near_best_split_points_run_until_each_is_known():
    measured = profile(("a", 1, 10.0, 1.0), ("b", 1, 10.5, 1.0), ("c", 1, 12.0, 1.0), ("a", 2, 1.0, 1.0))
    runs: Counter[str] = Counter()
    order = []
    while point := next_to_run(measured, 1, runs=runs, repeats=2):
        order.append(point.split_point)
        runs[point.split_point] += 1
    assert order == ["a", "b", "a", "b"]
    assert next_to_run(measured, 4, runs={}, repeats=1) is None


@given(st.lists(st.floats(1.0, 2.0), min_size=1, max_size=10), st.integers(0, 9), st.integers(0, 2))
def test_one_slow_run_does_not_hide_the_best_split_point(periods, slow_split_point, slow_run):
    measured = profile(*((str(split_point), 1, period_s, 0.1) for split_point, period_s in enumerate(periods)))
    samples: dict[str, list[float]] = {}
    while point := next_to_run(measured, 1, runs={name: len(runs) for name, runs in samples.items()}, repeats=3):
        runs = samples.setdefault(point.split_point, [])
        assert len(runs) < 3
        is_slow = (int(point.split_point), len(runs)) == (slow_split_point, slow_run)
        runs.append(periods[int(point.split_point)] * (2 if is_slow else 1))
        measured = with_point(measured, replace(point, period_s=statistics.median(runs)))
    assert periods[int(plan(measured).split_point)] == min(periods)


def with_point(profile: Profile, point: ProfilePoint) -> Profile:
    """Returns the profile with this point instead of the one of its split point and batch size."""
    old = profile.point(point.split_point, point.batch_size)
    return replace(profile, points=tuple(point if each is old else each for each in profile.points))


def points_of(choices: list[SplitChoice]) -> list[tuple[str, int]]:
    return [(choice.split_point, choice.batch_size) for choice in choices]


def test_the_shortlist_varies_batch_size_and_split_point_and_ends_with_the_lowest_latency() -> None:
    found = shortlist(
        profile(
            ("middle", 1, 1.0, 1.1), ("late", 1, 1.05, 0.5),
            ("middle", 8, 8.0, 7.0), ("late", 8, 8.1, 3.0),
        ),
        Objective.THROUGHPUT,
    )  # fmt: skip
    assert points_of(found) == [("middle", 8), ("late", 8), ("late", 1)]


def test_choices_that_are_much_worse_are_not_shortlisted() -> None:
    assert points_of(shortlist(HAND_MADE, Objective.THROUGHPUT)) == [("late", 8), ("output", 8), ("late", 1)]
    assert points_of(shortlist(HAND_MADE, Objective.LATENCY)) == [("late", 1), ("output", 1), ("middle", 1)]
    assert points_of(shortlist(HAND_MADE, Objective.LATENCY, batch_sizes=[8])) == [("output", 8), ("late", 8)]


STAGE_S = st.floats(0.001, 1.0)


@given(
    rows=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from((1, 2, 4)), STAGE_S, STAGE_S), min_size=1),
    objective=st.sampled_from(Objective),
    bound_s=st.one_of(st.just(math.inf), st.floats(0.001, 3.0)),
)
def test_every_shortlist_begins_with_the_plan_and_has_the_lowest_latency(
    rows: list[tuple[str, int, float, float]], objective: Objective, bound_s: float
) -> None:
    drawn = profile(*{row[:2]: row for row in rows}.values())
    found = shortlist(drawn, objective, bound_s)
    assert found[0] == plan(drawn, objective, bound_s)
    assert 1 <= len(found) <= SHORTLISTED
    assert len({(choice.split_point, choice.batch_size) for choice in found}) == len(found)
    lowest_s = plan(drawn, Objective.LATENCY).latency_s
    assert min(choice.latency_s for choice in found) == lowest_s
    limit_s = HOPELESS * max(lowest_s, min(bound_s, objective.latency_limit * lowest_s))
    assert all(choice.latency_s <= limit_s for choice in found)


def test_the_coolest_choices_need_the_least_time_of_a_processor_for_an_image():
    on_gpu = coolest(HAND_MADE, lambda point: point.backbone_s)
    assert points_of(on_gpu) == [("input", 1), ("input", 8), ("middle", 8)]
    on_cpu = coolest(HAND_MADE, lambda point: point.head_s, batch_sizes=[1])
    assert points_of(on_cpu) == [("output", 1), ("late", 1), ("middle", 1)]


@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0.0, 1.0), st.floats(0.001, 1.0)), min_size=1, max_size=12),
    st.floats(0.001, 3.0),
)
def test_the_coolest_choices_keep_the_bound_and_none_within_it_is_cooler(rows, bound_s):
    drawn = profile(*[(f"p{index}", *row) for index, row in enumerate(rows)])

    def busy_s(point: ProfilePoint) -> float:
        return point.backbone_s / point.batch_size

    found = coolest(drawn, lambda point: point.backbone_s, bound_s)
    points = {(point.split_point, point.batch_size): point for point in drawn.points}
    allowed = [point for point in points.values() if drawn.latency_s(point) <= bound_s]
    assert len(found) == min(SHORTLISTED, len(allowed))
    assert all(choice.within_bound for choice in found)
    chosen = [busy_s(points[choice.split_point, choice.batch_size]) for choice in found]
    assert chosen == sorted(map(busy_s, allowed))[: len(found)]
