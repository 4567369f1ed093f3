"""The controller moves a simulated pipeline whose stages take the times that a test sets, on a simulated clock."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.split.controller import SplitController
from split_infer_ros.split.planner import Objective, plan
from split_infer_ros.split.profile import Profile, ProfilePoint, StageContention

StageTimes = Callable[[str, float], tuple[float, float]]  # (split point, time) -> seconds of each stage alone

BACKBONE = {"early": 0.010, "middle": 0.020, "late": 0.030, "output": 0.040}
HEAD = {"early": 0.040, "middle": 0.018, "late": 0.008, "output": 0.001}
DWELL_S = 0.8
SEPARATE = StageContention()  # each stage has a processor of its own


def profile(contention: StageContention = SEPARATE) -> Profile:
    points = tuple(
        ProfilePoint(
            split_point=split_point,
            batch_size=4,
            bytes_per_image=1,
            preprocess_s=0.0,
            backbone_s=BACKBONE[split_point],
            hand_over_s=0.0,
            head_s=HEAD[split_point],
            decode_s=0.0,
        )
        for split_point in BACKBONE
    )
    return Profile("m", "cuda", points=points, contention=contention)


def halved(point: ProfilePoint) -> ProfilePoint:
    return replace(point.scaled(0.5, 0.5), batch_size=2)


def as_profiled(split_point: str, now: float) -> tuple[float, float]:
    return BACKBONE[split_point], HEAD[split_point]


@dataclass
class SimulatedPipeline:
    """A saturated pipeline that follows the controller.

    Attributes:
        controller: proposes moves.
        stages: what a batch really takes.
        split_point: where the pipeline runs now.
        contention: how much the stages slow each other down.
        interval_s: between batches, if that is longer than the pipeline's period.
        noise: standard deviation of the logarithm of each time.
        now: seconds.
        moves: when and where the pipeline moved.
    """

    controller: SplitController
    stages: StageTimes
    split_point: str
    contention: StageContention = SEPARATE
    interval_s: float = 0.0
    noise: float = 0.0
    now: float = 0.0
    moves: list[tuple[float, str]] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def run_until(self, end: float) -> SimulatedPipeline:
        while self.now < end:
            alone = self.stages(self.split_point, self.now)
            busy = self.contention.busy_s(*alone)
            if self.interval_s > sum(alone):
                busy = alone
            self.now += max(*busy, self.interval_s)
            backbone_s, head_s = (seconds * math.exp(self.random.gauss(0, self.noise)) for seconds in busy)
            choice = self.controller.observe(self.split_point, 4, backbone_s=backbone_s, head_s=head_s, now=self.now)
            if choice is not None:
                assert choice.split_point != self.split_point
                assert choice.batch_size == 4
                self.split_point = choice.split_point
                self.moves.append((self.now, choice.split_point))
        return self


def simulated(
    stages: StageTimes = as_profiled,
    split_point: str = "middle",
    contention: StageContention = SEPARATE,
    *,
    interval_s: float = 0.0,
    noise: float = 0.0,
) -> SimulatedPipeline:
    return SimulatedPipeline(
        controller=SplitController(profile(contention), dwell_s=DWELL_S),
        stages=stages,
        split_point=split_point,
        contention=contention,
        interval_s=interval_s,
        noise=noise,
    )


@pytest.mark.parametrize("num_images", [2, 3])
def test_batches_that_are_not_full_move_it_like_full_ones(num_images):
    """Half the images take half the time, and come twice as often."""
    smaller = replace(profile(), points=(*profile().points, *(halved(point) for point in profile().points)))
    controller = SplitController(smaller, dwell_s=DWELL_S, batch_sizes=(4,))
    share, now = num_images / 4, 0.0
    choices = []
    for slower in (1.0, 4.0):
        for _ in range(200):
            backbone_s, head_s = share * BACKBONE["middle"], share * slower * HEAD["middle"]
            now += max(backbone_s, head_s)
            choice = controller.observe(
                "middle", 4, num_images=num_images, backbone_s=backbone_s, head_s=head_s, now=now
            )
            if choice is not None:
                choices.append((slower, choice.split_point, choice.batch_size))
    assert set(choices) == {(4.0, "late", 4)}


def test_batches_smaller_than_all_profiled_ones_are_ignored():
    controller = SplitController(profile(), dwell_s=DWELL_S)
    for number in range(100):
        times = {"backbone_s": 9.0, "head_s": 0.001, "now": float(number)}
        assert controller.observe("middle", 4, num_images=3, **times) is None


def test_a_pipeline_that_runs_as_profiled_stays():
    assert plan(profile()).split_point == "middle"
    pipeline = simulated().run_until(24)
    assert pipeline.moves == []
    assert pipeline.controller.drift == pytest.approx((1, 1))


@pytest.mark.parametrize("contention", [StageContention(), StageContention(0.6, 0.9)])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_it_moves_once_under_load_and_back_after_it(contention, noise):
    """Something else takes the CPU: heads take four times as long between 8 s and 16 s."""

    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point], HEAD[split_point] * (4 if 8 <= now < 16 else 1)

    pipeline = simulated(stages, plan(profile(contention)).split_point, contention, noise=noise).run_until(8)
    assert pipeline.moves == []
    start = pipeline.split_point
    pipeline.run_until(16)
    assert [split_point for _, split_point in pipeline.moves] in (["late"], ["output"])
    assert 8 + DWELL_S <= pipeline.moves[0][0] <= 8 + 3 * DWELL_S
    pipeline.run_until(32)
    assert [split_point for _, split_point in pipeline.moves[1:]] == [start]
    assert pipeline.moves[1][0] <= 16 + 3 * DWELL_S


def test_a_slower_gpu_sends_work_to_the_head():
    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point] * (3 if now > 8 else 1), HEAD[split_point]

    pipeline = simulated(stages).run_until(24)
    assert [split_point for _, split_point in pipeline.moves] == ["early"]
    assert pipeline.controller.drift == pytest.approx((3, 1), rel=0.2)


def test_stages_that_slow_down_alike_cause_no_move():
    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point] * (1 + now / 12), HEAD[split_point] * (1 + now / 12)

    assert simulated(stages).run_until(24).moves == []


def test_a_short_disturbance_causes_no_move():
    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point], HEAD[split_point] * (5 if now % 4 < 0.3 else 1)

    assert simulated(stages).run_until(40).moves == []


def test_waiting_for_frames_is_no_drift():
    """Stages that seldom work at the same time do not slow each other down. That is no drift."""
    contention = StageContention(0.5, 0.7)
    pipeline = simulated(
        split_point=plan(profile(contention)).split_point, contention=contention, interval_s=0.2
    ).run_until(24)
    assert pipeline.moves == []
    assert pipeline.controller.drift == pytest.approx((1, 1))


def test_a_split_point_that_disappoints_is_left_for_good():
    """The split point 'middle' is slower than profiled."""

    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point], HEAD[split_point] * (3 if split_point == "middle" else 1)

    pipeline = simulated(stages, "late").run_until(80)
    assert [split_point for _, split_point in pipeline.moves] == ["middle", "late"]


def test_a_refused_move_is_not_proposed_again():
    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point], HEAD[split_point] * 4

    controller = SplitController(profile(), dwell_s=DWELL_S)
    backbone_s, head_s = stages("early", 0)
    proposed = []
    for number in range(1000):
        choice = controller.observe("early", 4, backbone_s=backbone_s, head_s=head_s, now=0.16 * number)
        if choice is not None:
            proposed.append(choice.split_point)
            controller.refuse(choice)
    assert proposed == ["late", "output", "middle"]


def test_only_allowed_batch_sizes_are_chosen():
    points = tuple(
        ProfilePoint(
            split_point="a",
            batch_size=size,
            bytes_per_image=1,
            preprocess_s=0.0,
            backbone_s=backbone_s,
            hand_over_s=0.0,
            head_s=0.001,
            decode_s=0.0,
        )
        for size, backbone_s in ((1, 0.01), (4, 0.02), (8, 0.03))
    )
    fast = Profile("m", "cuda", points=points, contention=StageContention())
    times = [(0.0101 * number) for number in range(2000)]

    def proposals(controller: SplitController) -> set[tuple[str, int]]:
        found = (controller.observe("a", 1, backbone_s=0.01, head_s=0.001, now=now) for now in times)
        return {(choice.split_point, choice.batch_size) for choice in found if choice is not None}

    assert proposals(SplitController(fast, dwell_s=DWELL_S)) == set()
    assert proposals(SplitController(fast, dwell_s=DWELL_S, batch_sizes=[1, 4])) == {("a", 4)}
    assert proposals(SplitController(fast, Objective.LATENCY, dwell_s=DWELL_S, batch_sizes=[1, 4, 8])) == set()
    assert proposals(SplitController(fast, latency_bound_s=0.03, dwell_s=DWELL_S, batch_sizes=[1, 4, 8])) == {("a", 4)}


def test_an_unprofiled_split_point_is_left_alone():
    controller = SplitController(profile(), dwell_s=DWELL_S)
    for now in range(100):
        assert controller.observe("unheard of", 4, backbone_s=1.0, head_s=1.0, now=float(now)) is None


def test_a_broken_bound_causes_a_move_and_no_move_back():
    """Latencies are 50 ms (early), 38 (middle), 38 (late) and 41 (output). Then the backbone slows down."""

    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point] * (1.5 if now > 8 else 1), HEAD[split_point]

    controller = SplitController(profile(), latency_bound_s=0.047, dwell_s=DWELL_S)
    pipeline = SimulatedPipeline(controller, stages, "late").run_until(8)
    assert [split_point for _, split_point in pipeline.moves] == ["middle"]
    pipeline.run_until(40)
    assert len(pipeline.moves) <= 2


FACTORS = st.floats(0.3, 3)


@settings(max_examples=20, derandomize=True)
@given(
    st.fixed_dictionaries({split_point: st.tuples(FACTORS, FACTORS) for split_point in BACKBONE}),
    st.sampled_from(list(BACKBONE)),
    st.sampled_from([StageContention(), StageContention(0.5, 0.8), StageContention(0.7, 0.7)]),
    st.floats(0, 0.2),
    st.integers(0, 2**32),
)
def test_it_comes_to_rest_whatever_the_profile_got_wrong(errors, start, contention, noise, seed):
    """The split points differ from their profile, but do not drift. So the controller stops moving."""

    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point] * errors[split_point][0], HEAD[split_point] * errors[split_point][1]

    pipeline = simulated(stages, start, contention, noise=noise)
    pipeline.random.seed(seed)
    pipeline.run_until(40)
    moves = len(pipeline.moves)
    pipeline.run_until(80)  # long enough for fifty moves
    assert len(pipeline.moves) <= 2 * len(BACKBONE)
    assert len(pipeline.moves) == moves or noise > 0.05
    tried = {start, *(split_point for _, split_point in pipeline.moves)}
    periods = {split_point: max(contention.busy_s(*stages(split_point, 0))) for split_point in tried}
    assert periods[pipeline.split_point] <= min(periods.values()) * 1.25


@settings(max_examples=10, derandomize=True)
@given(st.integers(0, 2**32), st.floats(0, 10), st.floats(0.2, 2))
def test_moves_are_at_least_two_dwell_times_apart(seed, depth, period):
    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point], HEAD[split_point] * (1 + depth * (now % (2 * period) < period))

    pipeline = simulated(stages, noise=0.2)
    pipeline.random.seed(seed)
    pipeline.run_until(40)
    times = [0.0, *(time for time, _ in pipeline.moves)]
    assert all(later - sooner >= 2 * DWELL_S for sooner, later in itertools.pairwise(times))


@pytest.mark.parametrize("split_point", ["early", "late", "output"])
def test_what_turns_have_found_is_kept_though_predictions_say_otherwise(split_point: str) -> None:
    pipeline = simulated(split_point=split_point)
    pipeline.controller.settle()
    assert pipeline.run_until(20).moves == []


def test_drift_after_turns_moves_the_split_point() -> None:
    """The turns found late; then the backbone stage becomes four times slower."""

    def stages(split_point: str, now: float) -> tuple[float, float]:
        return BACKBONE[split_point] * (4 if now > 5 else 1), HEAD[split_point]

    pipeline = simulated(stages, split_point="late")
    pipeline.controller.settle()
    pipeline.run_until(20)
    assert [where for _, where in pipeline.moves] == ["early"]
    assert pipeline.moves[0][0] > 5
