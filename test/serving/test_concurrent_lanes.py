"""Lanes that run at the same time."""

from __future__ import annotations

import threading

import pytest
import torch

from split_infer_ros.serving.concurrent_lanes import ConcurrentLanes
from split_infer_ros.serving.execution_timing import measure
from split_infer_ros.serving.merge_runner import Engine
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec


def test_what_an_execution_takes_is_measured_while_all_lanes_are_at_work() -> None:
    model = load_model(ModelSpec("shapes", "random", "cpu"))
    both = threading.Barrier(2, timeout=20)

    def backbone(images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both.wait()  # breaks unless two are here at once
        assert torch.get_num_threads() == 1
        return tuple(model.backbone("output")(images))

    lanes = [Engine(torch.device("cpu"), cores=1) for _ in range(2)]
    for lane in lanes:
        lane.load({"shapes": backbone}, {"shapes": 1.0})
    beside = ConcurrentLanes(lanes)
    costs = measure({"shapes": model}, beside, sizes=(1, 2), rounds=1)
    assert sorted(costs.alone_s["shapes"]) == [1, 2]
    both.abort()
    with pytest.raises(threading.BrokenBarrierError):
        beside.run({"shapes": torch.zeros(1, 3, 64, 64)})
    beside.close()
