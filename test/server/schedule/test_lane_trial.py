"""What executions show about lanes, with times that the test chooses."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from split_infer_ros.server.schedule.lane_trial import COUNT, LIMIT, LaneTrial

WHOLE_S, NUM_LANES = 0.1, 2
EVEN_S = NUM_LANES * WHOLE_S  # of an execution on a lane where both modes serve as many


def trial(whole_s: Iterable[float], lane_s: Iterable[float], num_images: int = 1) -> LaneTrial:
    found = LaneTrial(NUM_LANES)
    for seconds in whole_s:
        found.note(seconds, num_images=1, on_lane=False)
    for seconds in lane_s:
        found.note(seconds, num_images=num_images, on_lane=True)
    return found


def test_one_execution_that_is_done_sooner_is_enough() -> None:
    assert trial([WHOLE_S], [1.5 * EVEN_S, 0.9 * EVEN_S]).lanes_pay is True


def test_few_slow_executions_show_nothing() -> None:
    assert trial([WHOLE_S], [2 * EVEN_S] * (COUNT - 1)).lanes_pay is None


@pytest.mark.parametrize(("times", "pays"), [(0.99 * LIMIT, True), (1.01 * LIMIT, False)])
def test_lanes_may_be_a_little_slower(times: float, pays: bool) -> None:
    assert trial([WHOLE_S], [times * EVEN_S] * COUNT).lanes_pay is pays


def test_a_disturbed_execution_on_all_cores_does_not_count() -> None:
    assert trial([5 * WHOLE_S, WHOLE_S], [2 * EVEN_S] * COUNT).lanes_pay is False


def test_what_was_long_ago_does_not_count() -> None:
    """Others use the cores since then, so executions on all cores take longer as well."""
    assert trial([WHOLE_S, *[3 * WHOLE_S] * COUNT], [2 * EVEN_S]).lanes_pay is True


def test_batches_of_other_sizes_are_not_compared() -> None:
    assert trial([WHOLE_S], [0.5 * EVEN_S] * COUNT, num_images=2).lanes_pay is None


def test_a_verdict_stays() -> None:
    found = trial([WHOLE_S], [2 * EVEN_S] * COUNT)
    found.note(0.1 * EVEN_S, num_images=1, on_lane=True)
    assert found.lanes_pay is False
