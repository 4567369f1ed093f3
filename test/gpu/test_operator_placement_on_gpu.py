"""Placed models on a real GPU and the CPU: what the CPU alone gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fallback_net import images, sorting_model
from networks import graph_of

from split_infer_ros.models.detections import Limits
from split_infer_ros.operator_placement.operator_graph import read_operators, with_decode
from split_infer_ros.operator_placement.operator_list import OperatorList
from split_infer_ros.operator_placement.operator_timer import time_operators
from split_infer_ros.operator_placement.operator_times import rule_from_times
from split_infer_ros.operator_placement.placed_backbone import make_backbone
from split_infer_ros.operator_placement.placed_graph import apply_plan
from split_infer_ros.operator_placement.placed_run import run_plan
from split_infer_ros.operator_placement.plan import Rule, Tag, make_plan
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.vision_ops.implementations import ImplementationChoice

DEVICES = {Tag.GPU: torch.device("cuda", 0), Tag.CPU: torch.device("cpu")}


@pytest.mark.parametrize("name", ["shapes", "ssdlite320", "fasterrcnn_mobilenet_320"])
@pytest.mark.parametrize("measured", [False, True])
def test_a_placed_model_gives_what_the_cpu_gives(name: str, measured: bool) -> None:
    model = load_model(ModelSpec(name, "default" if name == "shapes" else "none", "cpu"))
    graph = with_decode(graph_of(model), model.entry)
    pictures = torch.rand(1, *model.entry.image_shape, generator=torch.Generator().manual_seed(0))
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    rule: Rule = OperatorList.read()
    if measured:
        rule = rule_from_times(time_operators(graph, pictures, DEVICES, repeats=1), rule)
    plan = make_plan(read_operators(graph, model.entry.image_shape), rule)
    placed = apply_plan(graph, plan, DEVICES)
    limits = Limits(0.0, 1.0, 20)  # nothing is suppressed: rounding turns near ties around
    with torch.inference_mode():
        outputs = model.head("input")(pictures.clone())
        (expected,) = model.entry.decode(outputs, limits)
        (found,) = placed(pictures.to(DEVICES[plan.devices[plan.operators[0].name]]), limits)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-2, atol=2e-3)


def test_a_placed_backbone_serves_a_pipeline() -> None:
    model = sorting_model()
    config = replace(model.execution_config, operators=ImplementationChoice.FALLBACK)
    placed = make_backbone(model.placed(DEVICES[Tag.GPU], config), "output")
    with torch.inference_mode():
        given = images(3)
        (expected,) = model.backbone("output")(given)
        (found,) = placed(given.to(DEVICES[Tag.GPU]))
    assert found.device == DEVICES[Tag.GPU]
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-2, atol=2e-3)  # float32 may be rounded to TF32 there


def test_a_plan_is_run_and_timed() -> None:
    model = load_model(ModelSpec("ssdlite320", "random", "cpu"))
    graph = with_decode(graph_of(model), model.entry)
    plan = make_plan(read_operators(graph, model.entry.image_shape), OperatorList.read())
    given = torch.rand(1, *model.entry.image_shape, generator=torch.Generator().manual_seed(0))
    found = run_plan(graph, plan, [given.contiguous(memory_format=torch.channels_last)], gpu=DEVICES[Tag.GPU])
    assert found.seconds is not None
    assert min(map(min, found.seconds)) > 0
