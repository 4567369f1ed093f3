"""When lanes are used. Time is drawn, so the tests depend on no clock."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.server.schedule.lane_choice import NUM_LANES, LaneChoice

WHOLE_S, LANE_S = 0.020, 0.032  # a batch alone on all cores, and beside another one on half of them


def serve(
    choice: LaneChoice, arrivals: list[float], keeps_newest: bool = False
) -> list[tuple[float, float, int | None]]:
    """Serves batches in order. Returns for each when it began, when it ended, and its lane."""
    served: list[tuple[float, float, int | None]] = []
    running: list[tuple[float, float, int | None]] = []
    waiting = list(arrivals)
    now = 0.0
    while waiting:
        now = max(now, waiting[0])
        for each in sorted(running):
            if each[1] <= now:
                running.remove(each)
                choice.end(each[2], each[0], each[1])
        if not choice.has_room():
            now = min(end for _, end, _ in running)
            continue
        if keeps_newest:
            while len(waiting) > 1 and waiting[1] <= now:
                waiting.pop(0)
        waiting.pop(0)
        lane = choice.begin(now)
        running.append((now, now + (WHOLE_S if lane is None else LANE_S), lane))
        served.append(running[-1])
    return served


def every(interval_s: float, count: int = 100, begin: float = 0.0) -> list[float]:
    return [begin + index * interval_s for index in range(count)]


@pytest.mark.parametrize("keeps_newest", [False, True])
def test_fast_batches_get_lanes_and_more_of_them_are_served(keeps_newest: bool) -> None:
    served = serve(LaneChoice(NUM_LANES), every(0.01), keeps_newest)
    lanes = [lane for _, _, lane in served]
    assert set(lanes[20:]) == {0, 1}
    begins = [begin for begin, _, _ in served[20:]]
    mean_s = (begins[-1] - begins[0]) / (len(begins) - 1)
    assert mean_s == pytest.approx(LANE_S / 2, rel=0.05)


@pytest.mark.parametrize("hz", [1.0, 10.0, 30.0])
def test_slow_batches_have_all_cores(hz: float) -> None:
    assert {lane for _, _, lane in serve(LaneChoice(NUM_LANES), every(1 / hz))} == {None}


def test_all_cores_again_once_batches_come_slowly() -> None:
    fast = every(0.01)
    served = serve(LaneChoice(NUM_LANES), fast + every(0.05, begin=fast[-1] + 3.0))
    assert {lane for _, _, lane in served[-80:]} == {None}


@pytest.mark.parametrize("interval_s", [0.035, 0.05, 0.08])
def test_one_disturbed_batch_keeps_no_lanes_in_use(interval_s: float) -> None:
    """The only batch on all cores takes ten times as long as usual. A camera is too fast, and then it slows down."""
    choice, disturbed_s = LaneChoice(NUM_LANES), 10 * WHOLE_S
    choice.end(choice.begin(0.0), 0.0, disturbed_s)
    fast = every(0.01, begin=disturbed_s)
    served = serve(choice, fast + every(interval_s, begin=fast[-1] + 3.0))
    assert 0 in {lane for _, _, lane in served[:80]}
    assert {lane for _, _, lane in served[-60:]} == {None}


def test_without_lanes_every_batch_has_all_cores() -> None:
    assert {lane for _, _, lane in serve(LaneChoice(1), every(0.001))} == {None}


def test_batch_that_cannot_be_computed_beside_another_waits_until_it_has_all_cores() -> None:
    choice = LaneChoice(NUM_LANES)
    end = serve(choice, every(0.001))[-1][1]
    assert not choice.has_room(may_use_lanes=False)
    while choice._running:
        choice.end(choice._running - 1, end, end)
    assert choice.has_room(may_use_lanes=False)
    assert choice.begin(end, may_use_lanes=False) is None


def test_a_gpu_takes_as_many_batches_as_it_is_deep() -> None:
    choice = LaneChoice(depth=3)
    for _ in range(3):
        assert choice.has_room()
        assert choice.begin(0.0) is None
    assert not choice.has_room()
    choice.end(None, 0.0, 0.02)
    assert choice.has_room()


@given(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=200))
def test_no_two_batches_share_a_lane_and_none_runs_beside_one_on_all_cores(pauses_s: list[float]) -> None:
    arrivals = [sum(pauses_s[: index + 1]) for index in range(len(pauses_s))]
    served = serve(LaneChoice(NUM_LANES), arrivals)
    assert len(served) == len(arrivals)
    for (_, first_end, first), (second_begin, _, second) in pairwise(served):
        if second_begin < first_end:
            assert first is not None
            assert second is not None
            assert first != second
