"""The mover against a pipeline whose stages really take what a test says, on a clock of its own."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.split.controller import SplitController
from split_infer_ros.split.planner import LATENCY, plan
from split_infer_ros.split.profile import CoRun, Profile, ProfilePoint

Stages = Callable[[str, float], tuple[float, float]]  # (cut, time) -> seconds of each stage alone

BACKBONE = {"early": 0.010, "middle": 0.020, "late": 0.030, "output": 0.040}
HEAD = {"early": 0.040, "middle": 0.018, "late": 0.008, "output": 0.001}
DWELL_S = 0.8
APART = CoRun()  # two processors


def profile(co_run: CoRun = APART) -> Profile:
    points = tuple(
        ProfilePoint(split_point, 4, 1, 0.0, BACKBONE[split_point], 0.0, HEAD[split_point], 0.0)
        for split_point in BACKBONE
    )
    return Profile("m", "cuda", points, co_run)


def as_profiled(split_point: str, now: float) -> tuple[float, float]:
    return BACKBONE[split_point], HEAD[split_point]


@dataclass
class Run:
    """A saturated pipeline that does as the mover says.

    Attributes:
        stages: what a batch really takes.
        interval_s: between frames' batches, where that is longer than the pipeline's period.
        noise: each time is off by a normal deviate of so much, relative.
    """

    controller: SplitController
    stages: Stages
    split_point: str
    co_run: CoRun = APART
    interval_s: float = 0.0
    noise: float = 0.0
    now: float = 0.0
    moves: list[tuple[float, str]] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def until(self, end: float) -> Run:
        while self.now < end:
            alone = self.stages(self.split_point, self.now)
            busy = self.co_run.busy(*alone)
            if self.interval_s > sum(alone):
                busy = alone
            self.now += max(*busy, self.interval_s)
            backbone_s, head_s = (seconds * math.exp(self.random.gauss(0, self.noise)) for seconds in busy)
            choice = self.controller.observe(self.split_point, 4, backbone_s, head_s, self.now)
            if choice is not None:
                assert choice.split_point != self.split_point
                assert choice.batch_size == 4
                self.split_point = choice.split_point
                self.moves.append((self.now, choice.split_point))
        return self


def run(stages: Stages = as_profiled, split_point: str = "middle", co_run: CoRun = APART, **options: float) -> Run:
    return Run(SplitController(profile(co_run), dwell_s=DWELL_S), stages, split_point, co_run, **options)


def test_where_all_is_as_profiled_it_stays():
    assert plan(profile()).split_point == "middle"
    done = run().until(24)
    assert done.moves == []
    assert done.controller.drift == pytest.approx((1, 1))


@pytest.mark.parametrize("co_run", [CoRun(), CoRun(0.6, 0.9)])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_after_a_step_it_moves_once_in_good_time_and_back_when_the_load_goes(co_run, noise):
    """Something else takes the CPU: heads take four times as long between 8 s and 16 s."""

    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point], HEAD[split_point] * (4 if 8 <= now < 16 else 1)

    done = run(stages, plan(profile(co_run)).split_point, co_run, noise=noise).until(8)
    assert done.moves == []
    start = done.split_point
    done.until(16)
    assert [split_point for _, split_point in done.moves] in (["late"], ["output"])
    assert 8 + DWELL_S <= done.moves[0][0] <= 8 + 3 * DWELL_S
    done.until(32)
    assert [split_point for _, split_point in done.moves[1:]] == [start]
    assert done.moves[1][0] <= 16 + 3 * DWELL_S


def test_a_slower_gpu_sends_work_to_the_head():
    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point] * (3 if now > 8 else 1), HEAD[split_point]

    done = run(stages).until(24)
    assert [split_point for _, split_point in done.moves] == ["early"]
    assert done.controller.drift == pytest.approx((3, 1), rel=0.2)


def test_when_both_stages_slow_down_alike_nothing_is_gained_by_moving():
    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point] * (1 + now / 12), HEAD[split_point] * (1 + now / 12)

    assert run(stages).until(24).moves == []


def test_a_short_disturbance_is_sat_out():
    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point], HEAD[split_point] * (5 if now % 4 < 0.3 else 1)

    assert run(stages).until(40).moves == []


def test_a_pipeline_that_waits_for_frames_is_not_taken_for_a_fast_one():
    """Stages that seldom work at the same time do not slow each other down, which is no drift."""
    co_run = CoRun(0.5, 0.7)
    done = run(split_point=plan(profile(co_run)).split_point, co_run=co_run, interval_s=0.2).until(24)
    assert done.moves == []
    assert done.controller.drift == pytest.approx((1, 1))


def test_a_cut_that_disappoints_is_left_and_not_tried_again():
    """'middle' is worse than profiled."""

    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point], HEAD[split_point] * (3 if split_point == "middle" else 1)

    done = run(stages, "late").until(80)
    assert [split_point for _, split_point in done.moves] == ["middle", "late"]


def test_a_move_that_cannot_be_made_is_not_proposed_again():
    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point], HEAD[split_point] * 4

    controller = SplitController(profile(), dwell_s=DWELL_S)
    proposed = []
    for number in range(1000):
        choice = controller.observe("early", 4, *stages("early", 0), 0.16 * number)
        if choice is not None:
            proposed.append(choice.split_point)
            controller.refuse(choice)
    assert proposed == ["late", "output", "middle"]


def test_batch_sizes_are_chosen_where_allowed():
    points = tuple(
        ProfilePoint("a", size, 1, 0.0, seconds, 0.0, 0.001, 0.0) for size, seconds in ((1, 0.01), (4, 0.02), (8, 0.03))
    )
    fast = Profile("m", "cuda", points, CoRun())
    times = [(0.0101 * number) for number in range(2000)]

    def proposals(controller: SplitController) -> set[tuple[str, int]]:
        found = (controller.observe("a", 1, 0.01, 0.001, now) for now in times)
        return {(choice.split_point, choice.batch_size) for choice in found if choice is not None}

    assert proposals(SplitController(fast, dwell_s=DWELL_S)) == set()
    assert proposals(SplitController(fast, dwell_s=DWELL_S, batch_sizes=[1, 4])) == {("a", 4)}
    assert proposals(SplitController(fast, LATENCY, dwell_s=DWELL_S, batch_sizes=[1, 4, 8])) == set()
    assert proposals(SplitController(fast, latency_bound_s=0.03, dwell_s=DWELL_S, batch_sizes=[1, 4, 8])) == {("a", 4)}


def test_a_cut_that_was_not_profiled_is_left_alone():
    controller = SplitController(profile(), dwell_s=DWELL_S)
    assert all(controller.observe("unheard of", 4, 1.0, 1.0, float(now)) is None for now in range(100))


def test_a_bound_that_is_broken_is_a_reason_to_move_and_one_just_kept_is_none_to_move_back():
    """Latencies: early 50 ms, middle 38, late 38, output 41; later all of it half as slow again."""

    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point] * (1.5 if now > 8 else 1), HEAD[split_point]

    controller = SplitController(profile(), latency_bound_s=0.047, dwell_s=DWELL_S)
    done = Run(controller, stages, "late").until(8)
    assert [split_point for _, split_point in done.moves] == ["middle"]
    done.until(40)
    assert len(done.moves) <= 2


factors = st.floats(0.3, 3)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries({split_point: st.tuples(factors, factors) for split_point in BACKBONE}),
    st.sampled_from(list(BACKBONE)),
    st.sampled_from([CoRun(), CoRun(0.5, 0.8), CoRun(0.7, 0.7)]),
    st.floats(0, 0.2),
    st.integers(0, 2**32),
)
def test_whatever_the_profile_got_wrong_it_comes_to_rest(wrong, start, co_run, noise, seed):
    """However the split points really differ from their profile, as long as that stays so: no split point is moved to
    for ever.
    """

    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point] * wrong[split_point][0], HEAD[split_point] * wrong[split_point][1]

    done = Run(SplitController(profile(co_run), dwell_s=DWELL_S), stages, start, co_run, noise=noise)
    done.random.seed(seed)
    done.until(40)
    moves = len(done.moves)
    done.until(80)  # long enough for fifty moves
    assert len(done.moves) <= 2 * len(BACKBONE)
    assert len(done.moves) == moves or noise > 0.05
    tried = {start, *(split_point for _, split_point in done.moves)}
    periods = {split_point: max(co_run.busy(*stages(split_point, 0))) for split_point in tried}
    assert periods[done.split_point] <= min(periods.values()) * 1.25


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.floats(0, 10), st.floats(0.2, 2))
def test_even_a_load_that_never_rests_moves_it_no_oftener_than_two_dwells_allow(seed, depth, period):
    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point], HEAD[split_point] * (1 + depth * (now % (2 * period) < period))

    done = run(stages, noise=0.2)
    done.random.seed(seed)
    done.until(40)
    times = [0.0, *(time for time, _ in done.moves)]
    assert all(later - sooner >= 2 * DWELL_S for sooner, later in itertools.pairwise(times))
