"""Lanes that run at the same time."""

from __future__ import annotations

import threading

import pytest
import torch
from measured_costs import measure_costs

from split_infer_ros.server.execution.concurrent_lanes import ConcurrentLanes
from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec


def test_costs_are_measured_while_all_lanes_are_at_work() -> None:
    model = load_model(ModelSpec("shapes", "random", "cpu"))
    both_lanes = threading.Barrier(2, timeout=60)

    def backbone(images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both_lanes.wait()  # breaks unless both lanes are here at once
        assert torch.get_num_threads() == 1
        return tuple(model.backbone("output")(images))

    lanes = [MergeRunner(torch.device("cpu"), num_threads=1) for _ in range(2)]
    for lane in lanes:
        lane.load({"shapes": backbone}, {"shapes": 1.0})
    runner = ConcurrentLanes(lanes)
    costs = measure_costs({"shapes": model}, runner, sizes=(1, 2), rounds=1)
    assert sorted(costs.alone_s["shapes"]) == [1, 2]
    both_lanes.abort()
    with pytest.raises(threading.BrokenBarrierError):
        runner.run({"shapes": torch.zeros(1, 3, 64, 64)})
    runner.close()
