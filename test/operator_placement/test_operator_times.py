from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.operator_placement.operator_graph import with_decode
from split_infer_ros.operator_placement.operator_timer import CALLS, time_operators
from split_infer_ros.operator_placement.operator_times import OperatorTimes, from_records, rule_from_times, to_records
from split_infer_ros.operator_placement.plan import Operator, Tag
from split_infer_ros.runtime.device import CPU
from split_infer_ros.split.graph import prepare

KEY, TASK = Key({"device": "a"}, {"torch": "1"}), {"model": "tiny", "stage": "operators"}


def times(cpu_s: float, gpu_s: float, moved_s: float) -> OperatorTimes:
    return OperatorTimes(cpu=(cpu_s, cpu_s, 9 * cpu_s), gpu=(gpu_s,), moved=(moved_s,))


def test_an_operator_leaves_the_gpu_if_that_saves_time() -> None:
    measured = {"slow": times(1.0, 2.0, 0.5), "near": times(1.0, 1.4, 0.5), "fast": times(5.0, 1.0, 0.1)}
    listed = {"sort": Tag.CPU, "view": Tag.ANY}
    rule = rule_from_times(measured, fallback=lambda operator: listed.get(operator.kind))
    assert rule(Operator("slow", "conv")) is Tag.CPU
    assert rule(Operator("near", "conv")) is Tag.GPU
    assert rule(Operator("fast", "sort")) is Tag.GPU  # whatever the list says
    assert rule(Operator("slow", "view")) is Tag.ANY
    assert rule(Operator("other", "sort")) is Tag.CPU
    assert rule(Operator("other", "conv")) is None


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True))

    def forward(self, images: Tensor) -> Tensor:
        x = self.layers(images)
        x += 1
        return x.mean((2, 3))  # type: ignore[no-any-return]


def test_times_of_every_operator_are_stored(tmp_path: Path) -> None:
    entry = find_model("mobilenet_v2")
    graph = with_decode(prepare(Tiny()), entry)
    found = time_operators(graph, torch.rand(1, 3, 12, 12), {Tag.GPU: CPU, Tag.CPU: torch.device("cpu", 0)}, repeats=2)
    assert list(found) == [node.name for node in graph.graph.nodes if node.op in CALLS]
    for samples in found.values():
        assert (len(samples.cpu), len(samples.gpu), len(samples.moved)) == (2, 2, 2)
        assert min(*samples.cpu, *samples.gpu, *samples.moved) > 0
    database = Database(tmp_path / "tuning.jsonl")
    database.add(to_records(found, KEY, TASK))
    assert from_records(database.find(KEY, TASK)) == found


def test_incomplete_times_are_left_out() -> None:
    records = to_records({"a": times(1, 2, 3), "b": times(4, 5, 6)}, KEY, TASK)
    assert from_records(records[:-1]).keys() == {"a"}
    again = to_records({"a": times(7, 8, 9)}, KEY, TASK)
    assert from_records(records + again)["a"] == times(7, 8, 9)
