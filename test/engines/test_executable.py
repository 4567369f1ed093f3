from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from comparisons import rounding
from partitions import partitions_of
from torch import nn

from split_infer_ros.engines.execution_config import Compiler, Convolutions, ExecutionConfig
from split_infer_ros.engines.fusion import FusedConv2d
from split_infer_ros.engines.torch_part import CompiledPart, ContiguousPart
from split_infer_ros.engines.traced_part import PartChain
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.split.load import build_model, load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.vision_ops.implementations import ImplementationChoice

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
TWICE = 2  # the second call packs weights or compiles
SEGMENTS = (
    (Convolutions.CONTIGUOUS, "features.3"),
    (Convolutions.PACKED, "features.11"),
    (Convolutions.CHANNELS_LAST, "output"),
)
CONFIGS = [
    ExecutionConfig(),
    ExecutionConfig(Convolutions.BLOCKED),
    ExecutionConfig(Convolutions.CHANNELS_LAST),
    ExecutionConfig(Convolutions.CONTIGUOUS),
    ExecutionConfig(Convolutions.MERGED, operators=ImplementationChoice.PLAIN),
    ExecutionConfig(Convolutions.TRITON, operators=ImplementationChoice.PLAIN),
    ExecutionConfig(Convolutions.PACKED, folding=False),
    ExecutionConfig(Convolutions.CONTIGUOUS, folding=False),
    ExecutionConfig(segments=SEGMENTS),
]


def network() -> nn.Module:
    entry = find_model("squeezenet1_0", allow_user_code=False)
    torch.manual_seed(0)
    return randomise(entry.build(), torch.randn(2, *entry.image_shape))


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_no_execution_config_changes_results(config: ExecutionConfig) -> None:
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        expected = network()(images)
        entry = find_model("squeezenet1_0", allow_user_code=False)
        model = SplitModel(TorchNetwork(entry, network(), folding=config.folding), CPU, config)
        assert expected.std() > 0.1
        for split_point in ("input", "features.3", "features.9", "output"):
            partitions = partitions_of(model, split_point)
            for _ in range(TWICE):
                (found,) = partitions.head(*partitions.backbone(images))
                assert rounding(found, expected) <= 1e-4  # other kernels, layer after layer


def kinds(module: nn.Module) -> list[Convolutions]:
    parts: Any = module.parts if isinstance(module, PartChain) else [module]
    return [
        Convolutions.CONTIGUOUS
        if isinstance(part, ContiguousPart)
        else Convolutions.PACKED
        if any(isinstance(each, FusedConv2d) for each in part.modules())
        else Convolutions.CHANNELS_LAST
        for part in parts
    ]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="nothing is packed without oneDNN")
def test_each_segment_runs_its_kind_of_convolutions() -> None:
    model = SplitModel(
        TorchNetwork(find_model("squeezenet1_0", allow_user_code=False), network()),
        CPU,
        ExecutionConfig(segments=SEGMENTS),
    )
    assert kinds(model.backbone("features.3")) == [Convolutions.CONTIGUOUS]
    assert kinds(model.backbone("features.9")) == [Convolutions.CONTIGUOUS, Convolutions.PACKED]
    assert kinds(model.head("features.9")) == [Convolutions.PACKED, Convolutions.CHANNELS_LAST]
    assert kinds(model.head("features.11")) == [Convolutions.CHANNELS_LAST]
    assert kinds(model.backbone("output")) == [Convolutions.CONTIGUOUS, Convolutions.PACKED, Convolutions.CHANNELS_LAST]
    segments, _ = model.segments()
    assert [kinds(segment)[0] for segment in segments[:4]] == [Convolutions.CONTIGUOUS] * 3 + [Convolutions.PACKED]


def test_models_of_other_configs_share_their_weights() -> None:
    spec = ModelSpec("shapes", "none", "cpu")
    plain = load_model(spec)
    contiguous_spec = replace(spec, execution_config=ExecutionConfig(Convolutions.CONTIGUOUS))
    contiguous = load_model(contiguous_spec)
    assert load_model(contiguous_spec) is contiguous
    assert load_model(spec) is plain
    assert plain.execution_config == ExecutionConfig()
    assert contiguous.network is plain.network
    unfolded = replace(spec, execution_config=ExecutionConfig(folding=False))
    assert load_model(unfolded).network is not plain.network


def test_unfolded_models_have_the_same_split_points() -> None:
    folded, unfolded = (
        TorchNetwork(*build_model(ModelSpec("mobilenet_v2", "none")), folding=folding) for folding in (True, False)
    )
    assert [(point.name, point.bytes_per_image) for point in folded.split_points] == [
        (point.name, point.bytes_per_image) for point in unfolded.split_points
    ]


@pytest.mark.parametrize(
    ("sizes", "compiled"),
    [
        ((16, 8, 4, 2, 1), (16, 1)),  # graphs are recorded in this order
        ((1, 16, 8, 16, 1, 2), (1, 16, 16, 1)),  # a plan warms up, and then runs
        ((8, 1, 4, 16, 1, 8), (8, 1, 16, 1, 8)),  # batches grow
    ],
)
def test_one_image_and_a_full_batch_are_compiled(
    sizes: tuple[int, ...], compiled: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []

    def compile_part(part: nn.Module, **options: Any) -> Any:
        calls.append(options)
        return lambda x: part(x) + 1000

    monkeypatch.setattr(torch, "compile", compile_part)
    part = CompiledPart(nn.Identity(), Compiler.INDUCTOR)
    assert calls == [{"dynamic": False, "options": {"freezing": True, "max_autotune": False}}]
    assert tuple(size for size in sizes if (part(torch.zeros(size)) == 1000).all()) == compiled
