"""Which execution mode serves more, and which is sooner done, by costs that are set by hand."""

from __future__ import annotations

import pytest

from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.request import Request


@pytest.mark.parametrize(("lane_s", "more"), [(2.8, True), (2.95, False), (3.1, False)])
def test_single_images_decide_whether_lanes_serve_more(lane_s: float, more: bool) -> None:
    whole = ExecutionCosts({"a": 1, "b": 1}, {"a": {1: 1.0, 2: 3.0}, "b": {1: 2.0, 8: 2.0}})
    lane = ExecutionCosts({"a": 1, "b": 1}, {"a": {1: lane_s}, "b": {1: lane_s, 4: 4 * lane_s}})
    modes = ExecutionModes(whole, 2, lane)
    assert modes.lanes_serve_more is more
    assert not ExecutionModes(whole).lanes_serve_more


@pytest.mark.parametrize(
    ("models", "sooner"), [("a", True), ("aa", False), ("b", True), ("aab", True), ("aaaaaab", False), ("abb", False)]
)
def test_all_cores_serve_what_they_finish_sooner(models: str, sooner: bool) -> None:
    """On all cores an a takes 1 (two 1.9), a b takes 4; on one of two lanes 1.5 and 7."""
    whole = ExecutionCosts({"a": 1, "b": 2}, {"a": {1: 1.0, 2: 1.9}, "b": {1: 4.0}})
    lane = ExecutionCosts({"a": 1, "b": 2}, {"a": {1: 1.5}, "b": {1: 7.0}})
    waiting = [Request(number, str(number), model, arrival_s=0.0) for number, model in enumerate(models)]
    modes = ExecutionModes(whole, 2, lane)
    assert modes.all_cores_finish_sooner(waiting) is sooner
    if len(models) > 1:
        assert not modes.all_cores_finish_sooner(waiting, more_arrive=True)
