"""When executions have lanes as long as their costs are not known. Time is drawn, so the tests depend on no clock."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.lane_rule import MAX_PAUSE_S, MIN_WHOLE, PAUSE_S, TRIAL_LIMIT, TRIALS, LaneTrial
from split_infer_ros.server.schedule.lane_scheduler import LaneScheduler, ScheduledExecution
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.scheduler import Rules
from split_infer_ros.split.planner import Objective

WHOLE_S, LANE_S = 0.020, 0.032  # an execution alone on all cores, and beside another one on half of them
NUM_LANES = 2
ALL_CORES_S = 0.1  # an execution on all cores in a trial
EVEN_S = NUM_LANES * ALL_CORES_S  # of an execution on a lane where both modes serve as many
RULES = Rules(window=1, max_batch_size=1)
Served = list[tuple[float, float, int | None]]


def modes(num_lanes: int = NUM_LANES) -> ExecutionModes:
    return ExecutionModes(ExecutionCosts({}, {}), num_lanes)


def next_of(
    scheduler: LaneScheduler,
    now: float,
    on_lanes: bool = True,
    num_lanes: int = NUM_LANES,
    processor_s: float | None = None,
) -> ScheduledExecution | None:
    """Begins the next execution if one may begin."""
    queue = [Request(0, "", "m", arrival_s=now)]
    found = scheduler.choose(queue, modes(num_lanes), now=now, rules=RULES, on_lanes={"m"} if on_lanes else ())
    if not found.decision.batches:
        return None
    scheduler.begin(found, now, processor_s)
    return found


def serve(
    scheduler: LaneScheduler,
    arrivals: list[float],
    keeps_newest: bool = False,
    processor_share: float = 1.0,  # that the process gets of both cores
    num_lanes: int = NUM_LANES,
    running: list[tuple[float, ScheduledExecution]] | None = None,
    lane_s: float = LANE_S,
) -> Served:
    """Serves requests in order. Returns for each when it began, when it ended, and its lane.

    What is not over then is in ``running``.
    """
    served: Served = []
    running = [] if running is None else running
    waiting = list(arrivals)
    now = 0.0
    while waiting:
        now = max(now, waiting[0])
        for each in sorted(running, key=lambda each: each[0]):
            if each[0] <= now:
                running.remove(each)
                scheduler.end(each[1], each[0], processor_share * NUM_LANES * each[0])
        begun = next_of(scheduler, now, num_lanes=num_lanes, processor_s=processor_share * NUM_LANES * now)
        if begun is None:
            now = min(end for end, _ in running)
            continue
        if keeps_newest:
            while len(waiting) > 1 and waiting[1] <= now:
                waiting.pop(0)
        waiting.pop(0)
        end = now + (WHOLE_S if begun.lane is None else lane_s)
        running.append((end, begun))
        served.append((now, end, begun.lane))
    return served


def every(interval_s: float, count: int = 100, begin: float = 0.0) -> list[float]:
    return [begin + index * interval_s for index in range(count)]


@pytest.mark.parametrize("keeps_newest", [False, True])
def test_fast_batches_get_lanes_and_more_of_them_are_served(keeps_newest: bool) -> None:
    served = serve(LaneScheduler(NUM_LANES), every(0.01), keeps_newest)
    lanes = [lane for _, _, lane in served]
    assert set(lanes[20:]) == {0, 1}
    begins = [begin for begin, _, _ in served[20:]]
    mean_s = (begins[-1] - begins[0]) / (len(begins) - 1)
    assert mean_s == pytest.approx(LANE_S / 2, rel=0.05)


@pytest.mark.parametrize("hz", [1.0, 10.0, 30.0])
def test_slow_batches_have_all_cores(hz: float) -> None:
    assert {lane for _, _, lane in serve(LaneScheduler(NUM_LANES), every(1 / hz))} == {None}


def test_all_cores_again_once_batches_come_slowly() -> None:
    fast = every(0.01)
    served = serve(LaneScheduler(NUM_LANES), fast + every(0.05, begin=fast[-1] + 3.0))
    assert {lane for _, _, lane in served[-80:]} == {None}


@pytest.mark.parametrize("interval_s", [0.035, 0.05, 0.08])
def test_one_disturbed_batch_keeps_no_lanes_in_use(interval_s: float) -> None:
    """The only batch on all cores takes ten times as long as usual. A camera is too fast, and then it slows down."""
    scheduler, disturbed_s = LaneScheduler(NUM_LANES), 10 * WHOLE_S
    first = next_of(scheduler, 0.0)
    assert first is not None
    scheduler.end(first, disturbed_s)
    fast = every(0.01, begin=disturbed_s)
    served = serve(scheduler, fast + every(interval_s, begin=fast[-1] + 3.0))
    assert 0 in {lane for _, _, lane in served[:80]}
    assert {lane for _, _, lane in served[-60:]} == {None}


def test_without_lanes_every_batch_has_all_cores() -> None:
    assert {lane for _, _, lane in serve(LaneScheduler(0), every(0.001), num_lanes=0)} == {None}


def test_a_model_that_has_no_lanes_waits_until_it_has_all_cores() -> None:
    scheduler, running = LaneScheduler(NUM_LANES), []
    now = serve(scheduler, every(0.001), running=running)[-1][0]
    assert running
    assert all(begun.lane is not None for _, begun in running)
    assert next_of(scheduler, now, on_lanes=False) is None
    for end, begun in running:
        scheduler.end(begun, end)
    whole = next_of(scheduler, now + LANE_S, on_lanes=False)
    assert whole is not None
    assert whole.lane is None


def test_a_fast_model_without_lanes_misses_them() -> None:
    scheduler, now, missed = LaneScheduler(NUM_LANES), 0.0, []
    for interval_s in [*[WHOLE_S] * 5, *[3 * WHOLE_S] * 5]:
        whole = next_of(scheduler, now, on_lanes=False)
        assert whole is not None
        assert whole.lane is None
        missed.append(whole.misses_lane)
        scheduler.end(whole, now + WHOLE_S)
        now += interval_s
    assert missed == [False, *[True] * 6, *[False] * 3]


def test_lanes_that_are_slower_side_by_side_do_not_pay() -> None:
    scheduler = LaneScheduler(NUM_LANES)
    serve(scheduler, every(0.01), lane_s=LANE_S)
    assert scheduler.lanes_pay("m")
    scheduler = LaneScheduler(NUM_LANES)
    serve(scheduler, every(0.01), lane_s=1.2 * NUM_LANES * WHOLE_S)
    assert not scheduler.lanes_pay("m")
    assert scheduler.lanes_pay("another")
    scheduler.forget("m")
    assert scheduler.lanes_pay("m")


def test_an_execution_alone_on_a_lane_shows_nothing() -> None:
    """Each is as slow as all cores twice, but nothing runs beside it."""
    scheduler, now = LaneScheduler(NUM_LANES), 0.0
    for _ in range(100):
        begun = next_of(scheduler, now)
        assert begun is not None
        now += WHOLE_S if begun.lane is None else 1.2 * NUM_LANES * WHOLE_S
        scheduler.end(begun, now)
    assert scheduler.lanes_pay("m")


def test_a_gpu_takes_as_many_executions_as_it_is_deep() -> None:
    scheduler = LaneScheduler(depth=3)
    begun = [next_of(scheduler, 0.0, num_lanes=0) for _ in range(3)]
    assert [each is not None and each.lane is None for each in begun] == [True] * 3
    assert next_of(scheduler, 0.0, num_lanes=0) is None
    assert begun[0] is not None
    scheduler.end(begun[0], 0.02)
    assert next_of(scheduler, 0.02, num_lanes=0) is not None


def test_lanes_are_left_alone_while_others_use_the_cores() -> None:
    """Every execution on a lane gets half of the processor time; later all of it."""
    scheduler = LaneScheduler(NUM_LANES)
    fast = every(0.01, count=3000)
    running: list[tuple[float, ScheduledExecution]] = []
    served = serve(scheduler, fast, keeps_newest=True, processor_share=0.5, running=running)
    assert sum(lane is not None for _, _, lane in served) < 0.1 * len(served)
    later = [fast[-1] + MAX_PAUSE_S + PAUSE_S + at for at in every(0.01, count=1000)]
    served = serve(scheduler, later, keeps_newest=True, running=running)
    assert {lane for _, _, lane in served[20:]} == {0, 1}


def test_lanes_are_kept_while_others_use_half_a_core() -> None:
    """All cores serve less then, because the threads of an execution wait for the one whose core is taken."""
    scheduler = LaneScheduler(NUM_LANES)
    served = serve(scheduler, every(0.01, count=3000), keeps_newest=True, processor_share=0.75)
    assert {lane for _, _, lane in served[20:]} == {0, 1}


@given(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=200))
def test_no_two_batches_share_a_lane_and_none_runs_beside_one_on_all_cores(pauses_s: list[float]) -> None:
    arrivals = [sum(pauses_s[: index + 1]) for index in range(len(pauses_s))]
    served = serve(LaneScheduler(NUM_LANES), arrivals)
    assert len(served) == len(arrivals)
    for (_, first_end, first), (second_begin, _, second) in pairwise(served):
        if second_begin < first_end:
            assert first is not None
            assert second is not None
            assert first != second


def trial(whole_s: Iterable[float], lane_s: Iterable[float], num_images: int = 1) -> LaneTrial:
    found = LaneTrial(NUM_LANES)
    for seconds in whole_s:
        found.note(seconds, num_images=1, on_lane=False)
    for seconds in lane_s:
        found.note(seconds, num_images=num_images, on_lane=True)
    return found


def serve_more(whole_s: Iterable[float], lane_s: Iterable[float], num_images: int = 1) -> bool | None:
    return trial(whole_s, lane_s, num_images).lanes_pay(NUM_LANES)


ALL_CORES = [ALL_CORES_S] * MIN_WHOLE


def test_one_execution_that_is_done_sooner_is_enough() -> None:
    assert serve_more(ALL_CORES, [1.5 * EVEN_S, 0.9 * EVEN_S]) is True


def test_few_slow_executions_show_nothing() -> None:
    assert serve_more(ALL_CORES, [2 * EVEN_S] * (TRIALS - 1)) is None


def test_few_executions_on_all_cores_show_nothing() -> None:
    assert serve_more(ALL_CORES[1:], [0.9 * EVEN_S]) is None


@pytest.mark.parametrize(("times", "pays"), [(0.99 * TRIAL_LIMIT, True), (1.01 * TRIAL_LIMIT, False)])
def test_lanes_may_be_a_little_slower(times: float, pays: bool) -> None:
    assert serve_more(ALL_CORES, [times * EVEN_S] * TRIALS) is pays


@pytest.mark.parametrize(
    ("times", "pays"),
    [
        ([1.19] * TRIALS, True),
        ([1.21] * TRIALS, False),
        ([1.0] * (TRIALS - 1), None),
        ([1.0] * (TRIALS // 2 - 1) + [1.7] * (TRIALS // 2 + 1), False),
    ],
)
def test_lanes_that_serve_more_do_not_pay_if_each_image_waits_too_long(times: list[float], pays: bool | None) -> None:
    found = trial(ALL_CORES, [each * ALL_CORES_S for each in times])
    assert found.lanes_pay(Objective.BALANCED.latency_limit) is pays


def test_another_limit_judges_what_was_seen_before() -> None:
    found = trial(ALL_CORES, [1.6 * ALL_CORES_S] * TRIALS)
    assert found.lanes_pay(Objective.BALANCED.latency_limit) is False
    assert found.lanes_pay(NUM_LANES) is True


@pytest.mark.parametrize(("lane_s", "pays"), [(1.1 * WHOLE_S, True), (1.6 * WHOLE_S, False), (2.6 * WHOLE_S, False)])
@pytest.mark.parametrize("is_new", [False, True], ids=["lanes become ready", "a new plan has lanes"])
def test_a_trial_ends_while_frames_come_too_fast(lane_s: float, pays: bool, is_new: bool) -> None:
    """A new plan has no executions on all cores to compare with, so it gets some."""
    scheduler, arrivals, limit = LaneScheduler(NUM_LANES), every(0.005, count=2000), Objective.BALANCED.latency_limit
    running: list[tuple[float, ScheduledExecution]] = []
    if is_new:
        serve(scheduler, arrivals, keeps_newest=True, lane_s=lane_s, running=running)
        scheduler.forget("m")
        arrivals = [arrivals[-1] + 1.0 + at for at in arrivals]
    serve(scheduler, arrivals, keeps_newest=True, lane_s=lane_s, running=running)
    assert scheduler.lanes_pay("m", limit) is pays


def test_a_disturbed_execution_on_all_cores_does_not_count() -> None:
    assert serve_more([5 * ALL_CORES_S, *ALL_CORES], [2 * EVEN_S] * TRIALS) is False


def test_what_was_long_ago_does_not_count() -> None:
    """Others use the cores since then, so executions on all cores take longer as well."""
    assert serve_more([ALL_CORES_S, *[3 * ALL_CORES_S] * TRIALS], [2 * EVEN_S]) is True


def test_batches_of_other_sizes_are_not_compared() -> None:
    assert serve_more(ALL_CORES, [0.5 * EVEN_S] * TRIALS, num_images=2) is None


def test_a_verdict_stays() -> None:
    found = trial(ALL_CORES, [2 * EVEN_S] * TRIALS)
    assert found.lanes_pay(NUM_LANES) is False
    found.note(0.1 * EVEN_S, num_images=1, on_lane=True)
    assert found.lanes_pay(NUM_LANES) is False
