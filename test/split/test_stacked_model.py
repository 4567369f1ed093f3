"""Models of one architecture as one network: images are joined, features are divided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from stacked_nets import CPU, seeded_model, seeded_models
from torch import Tensor, nn

from split_infer_ros.buffers.host_arrays import bfloat16, torch_dtype
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Compiler, Convolutions, ExecutionConfig
from split_infer_ros.engines.fusion import FusedConv2d
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.result_difference import MAX_DIFFERENCE, MAX_LOW_PRECISION_DIFFERENCE, difference
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split import stacked_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.stacked_model import StackedModel

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module")
def squeezes() -> dict[str, SplitModel]:
    return seeded_models("squeezenet1_0", 3)


def images_of(members: Mapping[str, SplitModel], counts: Mapping[str, int]) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    return {
        name: torch.randn((count, *members[name].entry.image_shape), generator=random).to(
            torch_dtype(members[name].dtype)
        )
        for name, count in counts.items()
    }


@torch.inference_mode()
def check(stack: StackedModel, counts: Mapping[str, int], limit: float = MAX_DIFFERENCE) -> None:
    images = images_of(stack.members, counts)
    found = stack.run(images)
    assert found.keys() == counts.keys()
    for name, own in images.items():
        expected = stack.members[name].backbone(stack.split_point)(own)
        assert [each.shape for each in found[name]] == [each.shape for each in expected]
        assert expected[0].std() > 1e-3
        assert difference(found[name], expected) <= limit


@pytest.mark.parametrize("counts", [{"a": 2, "b": 2, "c": 2}, {"a": 1, "b": 3, "c": 2}, {"b": 1, "c": 2}, {"c": 1}])
def test_members_have_their_own_results_in_batches_of_any_size(
    squeezes: dict[str, SplitModel], counts: dict[str, int]
) -> None:
    """The same sums in float32, in another order: the package's bound for that, on any processor."""
    check(StackedModel(squeezes, "output"), counts)


def test_module_that_is_called_twice_is_packed_like_any_other() -> None:
    """Each block of a ResNet calls its activation twice."""
    check(StackedModel(seeded_models("resnet18", 2, side=32), "layer2"), {"a": 1, "b": 2})


@pytest.mark.parametrize("split_point", ["input", "default"])
def test_network_ends_at_the_split_point(squeezes: dict[str, SplitModel], split_point: str) -> None:
    check(StackedModel(squeezes, split_point), {"a": 1, "b": 1, "c": 1})


def test_network_runs_in_the_models_execution_config(squeezes: dict[str, SplitModel]) -> None:
    packed = StackedModel(squeezes, "output")
    convolutions = [module for module in packed.backbone.modules() if isinstance(module, FusedConv2d)]
    assert len(convolutions) == 26
    assert {convolution.geometry[3] for convolution in convolutions} == {3}
    config = ExecutionConfig(convolutions=Convolutions.CONTIGUOUS)
    plain = StackedModel({name: model.placed(CPU, config) for name, model in squeezes.items()}, "output")
    assert not any(isinstance(module, FusedConv2d) for module in plain.backbone.modules())
    check(plain, {"a": 1, "b": 2})


def test_network_computes_in_the_models_precision(squeezes: dict[str, SplitModel]) -> None:
    config = ExecutionConfig(precision=Precision.BF16)
    stack = StackedModel({name: model.placed(CPU, config) for name, model in squeezes.items()}, "features.5")
    assert stack.dtype == bfloat16()
    check(stack, {"a": 1, "b": 1}, 2 * MAX_LOW_PRECISION_DIFFERENCE)


def test_models_keep_running_alone(squeezes: dict[str, SplitModel]) -> None:
    images = images_of(squeezes, {"a": 1})["a"]
    with torch.inference_mode():
        before = squeezes["a"].backbone("output")(images)
        StackedModel(squeezes, "output")
        torch.testing.assert_close(squeezes["a"].backbone("output")(images), before, rtol=0, atol=0)


def test_other_architecture_is_refused(squeezes: dict[str, SplitModel]) -> None:
    other = seeded_model("squeezenet1_0", 0, side=80)
    narrow = seeded_model("mobilenet_v2", 0)
    for model in (other, narrow):
        with pytest.raises(ConfigurationError, match=r"a \+ x differ in more than their weights"):
            StackedModel({"a": squeezes["a"], "x": model}, "output")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (ExecutionConfig(engine=Engine.OPENVINO), "engine openvino, and only torch computes several models"),
        (ExecutionConfig(compiler=Compiler.INDUCTOR), "are compiled or tuned by segment"),
        (ExecutionConfig(segments=((Convolutions.BLOCKED, "output"),)), "are compiled or tuned by segment"),
    ],
)
def test_execution_config_of_a_single_network_is_refused(
    squeezes: dict[str, SplitModel], config: ExecutionConfig, reason: str
) -> None:
    placed = {name: model.placed(CPU, config) for name, model in squeezes.items()}
    with pytest.raises(ConfigurationError, match=reason):
        StackedModel(placed, "output")


def test_different_configs_and_single_models_are_refused(squeezes: dict[str, SplitModel]) -> None:
    config = replace(squeezes["a"].execution_config, convolutions=Convolutions.CONTIGUOUS)
    with pytest.raises(ConfigurationError, match=r"a \+ b run on different devices or in different ways"):
        StackedModel({"a": squeezes["a"], "b": squeezes["b"].placed(CPU, config)}, "output")
    with pytest.raises(ConfigurationError, match="at least two models, and was given 1"):
        StackedModel({"a": squeezes["a"]}, "output")


def test_network_with_other_results_is_refused(
    squeezes: dict[str, SplitModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack_graphs = stacked_model.stack_graphs

    def swapped(parts: list[nn.Module], *args: object) -> nn.Module:
        return stack_graphs(parts[::-1], *args)  # type: ignore[arg-type]

    monkeypatch.setattr(stacked_model, "stack_graphs", swapped)
    with pytest.raises(ConfigurationError, match=r"a gives results that differ by \d\S+ of the largest"):
        StackedModel(squeezes, "output")


def test_network_that_cannot_run_is_refused(squeezes: dict[str, SplitModel], monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            raise RuntimeError("no batching rule")

    monkeypatch.setattr(stacked_model, "make_traced_part", lambda *args, **options: Broken())
    with pytest.raises(ConfigurationError, match=r"cannot run as one network: let each run alone \(no batching rule"):
        StackedModel(squeezes, "output")
