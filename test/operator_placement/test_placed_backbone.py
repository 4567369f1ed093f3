"""Backbones of which some operators fall back. Here GPU and CPU are two names of the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fallback_net import images, sorting_model
from networks import network_of

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.writing_part import writing_part
from split_infer_ros.operator_placement.listed_placement import has_host_operators, placed_backbone
from split_infer_ros.operator_placement.placed_backbone import make_backbone
from split_infer_ros.operator_placement.placed_graph import copy_to
from split_infer_ros.operator_placement.plan import Tag
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.vision_ops.implementations import ImplementationChoice

CPU = torch.device("cpu")


@pytest.mark.parametrize("split_point", ["second", "output"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_placed_backbone_gives_the_backbones_features(split_point: str, count: int) -> None:
    # equal bits: both devices are this CPU, so the same kernels run on the same values
    model = sorting_model()
    placed = placed_backbone(network_of(model), split_point, {Tag.GPU: CPU, Tag.CPU: CPU})
    copies = [node for node in placed.graph.nodes if node.target is copy_to]  # type: ignore[union-attr]
    assert len(copies) == 2, "to the CPU for sorting, and back"
    with torch.inference_mode():
        for found, expected in zip(placed(images(count)), model.backbone(split_point)(images(count)), strict=True):
            assert expected.std() > 0
            assert torch.equal(found, expected)
        (written,) = writing_part(placed)(images(count))
        assert torch.equal(written, expected), "its last operator writes into a slot as any other does"


def test_operators_fall_back_only_if_the_configuration_says_so() -> None:
    model = sorting_model()
    falling_back = replace(model.execution_config, operators=ImplementationChoice.FALLBACK)
    for config in (ExecutionConfig(), falling_back):
        same = model.placed(CPU, config)
        assert make_backbone(same, "output") is same.backbone("output"), "on a CPU nothing falls back"


def test_networks_without_host_operators_are_known() -> None:
    assert has_host_operators(sorting_model())
    assert not has_host_operators(load_model(ModelSpec("shapes", "none", "cpu")))
