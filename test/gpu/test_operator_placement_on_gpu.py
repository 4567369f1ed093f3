"""Placed models on a real GPU and the CPU: what the CPU alone gives."""

from __future__ import annotations

import pytest
import torch

from split_infer_ros.models.detections import Limits
from split_infer_ros.operator_placement.operator_graph import read_operators, with_decode
from split_infer_ros.operator_placement.operator_list import OperatorList
from split_infer_ros.operator_placement.operator_times import rule_from_times, time_operators
from split_infer_ros.operator_placement.placed_graph import apply_plan
from split_infer_ros.operator_placement.plan import Rule, Tag, make_plan
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec

DEVICES = {Tag.GPU: torch.device("cuda", 0), Tag.CPU: torch.device("cpu")}


@pytest.mark.parametrize("name", ["shapes", "ssdlite320", "fasterrcnn_mobilenet_320"])
@pytest.mark.parametrize("measured", [False, True])
def test_a_placed_model_gives_what_the_cpu_gives(name: str, measured: bool) -> None:
    model = load_model(ModelSpec(name, "default" if name == "shapes" else "none", "cpu"))
    graph = with_decode(model.graph, model.entry)
    images = torch.rand(1, *model.entry.image_shape, generator=torch.Generator().manual_seed(0))
    images = images.contiguous(memory_format=torch.channels_last)
    rule: Rule = OperatorList.read()
    if measured:
        rule = rule_from_times(time_operators(graph, images, DEVICES, repeats=1), rule)
    plan = make_plan(read_operators(graph, model.entry.image_shape), rule)
    placed = apply_plan(graph, plan, DEVICES)
    limits = Limits(0.0, 1.0, 20)  # nothing is suppressed: rounding turns near ties around
    with torch.inference_mode():
        outputs = model.head("input")(images.clone())
        (expected,) = model.entry.decode(outputs, limits)
        (found,) = placed(images.to(DEVICES[plan.devices[plan.operators[0].name]]), limits)
    assert found.boxes.device.type == "cpu"
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-2, atol=2e-3)
