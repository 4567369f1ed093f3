"""Lanes that run at the same time, and whether they serve more."""

from __future__ import annotations

import threading

import pytest
import torch

from split_infer_ros.split.model import load_model
from split_infer_ros.tenancy.costs import Costs
from split_infer_ros.tenancy.engine import Engine
from split_infer_ros.tenancy.measure import measure
from split_infer_ros.tenancy.request import Request
from split_infer_ros.tenancy.side_by_side import SideBySide, serve_more, sooner_together


def test_what_an_execution_takes_is_measured_while_all_lanes_are_at_work() -> None:
    model = load_model("shapes", "random", "cpu")
    both = threading.Barrier(2, timeout=20)

    def backbone(images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both.wait()  # breaks unless two are here at once
        assert torch.get_num_threads() == 1
        return tuple(model.backbone("output")(images))

    lanes = [Engine(torch.device("cpu"), cores=1) for _ in range(2)]
    for lane in lanes:
        lane.load({"shapes": backbone}, {"shapes": 1.0})
    beside = SideBySide(lanes)
    costs = measure({"shapes": model}, beside, sizes=(1, 2), rounds=1)
    assert sorted(costs.alone_s["shapes"]) == [1, 2]
    both.abort()
    with pytest.raises(threading.BrokenBarrierError):
        beside.run({"shapes": torch.zeros(1, 3, 64, 64)})
    beside.close()


@pytest.mark.parametrize(("lane_s", "more"), [(1.9, True), (2.1, False)])
def test_lanes_serve_more_where_their_best_batches_do(lane_s: float, more: bool) -> None:
    whole = Costs({"a": 1, "b": 1}, {"a": {1: 1.0, 2: 3.0}, "b": {1: 2.0, 2: 2.0}})
    lane = Costs({"a": 1, "b": 1}, {"a": {1: 2.0}, "b": {1: lane_s, 4: 4 * lane_s}})
    assert serve_more(lane, whole, 2) is more


@pytest.mark.parametrize(
    ("models", "together"), [("a", True), ("aa", False), ("b", True), ("aab", True), ("aaaaaab", False), ("abb", False)]
)
def test_all_cores_take_what_they_are_sooner_done_with(models: str, together: bool) -> None:
    """On all cores an a takes 1 (two 1.9), a b takes 4; on one of two lanes 1.5 and 7."""
    whole = Costs({"a": 1, "b": 2}, {"a": {1: 1.0, 2: 1.9}, "b": {1: 4.0}})
    lane = Costs({"a": 1, "b": 2}, {"a": {1: 1.5}, "b": {1: 7.0}})
    waiting = [Request(number, str(number), model, 0.0) for number, model in enumerate(models)]
    assert sooner_together(waiting, lane, whole, 2) is together
