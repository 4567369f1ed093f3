from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from comparing import rounding
from torch import nn

from split_infer_ros.engines import execution_config as form_module
from split_infer_ros.engines.execution_config import (
    BLOCKED,
    CHANNELS_LAST,
    CONTIGUOUS,
    INDUCTOR,
    PACKED,
    TRITON,
    Chain,
    Compiled,
    Contiguous,
    ExecutionConfig,
)
from split_infer_ros.engines.fusion import FusedConv2d
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.split.load import build_model, load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

CPU = torch.device("cpu")
TWICE = 2  # then they are packed, or compiled
SEGMENTS = ((CONTIGUOUS, "features.3"), (PACKED, "features.11"), (CHANNELS_LAST, "output"))
FORMS = [
    ExecutionConfig(),
    ExecutionConfig(BLOCKED),
    ExecutionConfig(CHANNELS_LAST),
    ExecutionConfig(CONTIGUOUS),
    ExecutionConfig(TRITON, operators="plain"),
    ExecutionConfig(PACKED, folding=False),
    ExecutionConfig(CONTIGUOUS, folding=False),
    ExecutionConfig(segments=SEGMENTS),
]


def network() -> nn.Module:
    entry = find_model("squeezenet1_0")
    torch.manual_seed(0)
    return randomise(entry.build(), torch.randn(2, *entry.image_shape))


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_a_form_changes_no_result(form: ExecutionConfig) -> None:
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        expected = network()(images)
        model = SplitModel(find_model("squeezenet1_0"), network(), CPU, form)
        assert expected.std() > 0.1
        for split_point in ("input", "features.3", "features.9", "output"):
            partitions = model.partitions(split_point)
            for _ in range(TWICE):
                (found,) = partitions.head(*partitions.backbone(images))
                assert rounding(found, expected) <= 1e-4  # other kernels, layer after layer


def kinds(module: nn.Module) -> list[str]:
    parts: Any = module._parts if isinstance(module, Chain) else [module]
    return [
        CONTIGUOUS
        if isinstance(part, Contiguous)
        else PACKED
        if any(isinstance(each, FusedConv2d) for each in part.modules())
        else CHANNELS_LAST
        for part in parts
    ]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="nothing is packed without oneDNN")
def test_segments_are_as_they_are_named() -> None:
    model = SplitModel(find_model("squeezenet1_0"), network(), CPU, ExecutionConfig(segments=SEGMENTS))
    assert kinds(model.backbone("features.3")) == [CONTIGUOUS]
    assert kinds(model.backbone("features.9")) == [CONTIGUOUS, PACKED]
    assert kinds(model.head("features.9")) == [PACKED, CHANNELS_LAST]
    assert kinds(model.head("features.11")) == [CHANNELS_LAST]
    assert kinds(model.backbone("output")) == [CONTIGUOUS, PACKED, CHANNELS_LAST]
    pieces, _ = model.segments()
    assert [kinds(piece)[0] for piece in pieces[:4]] == [CONTIGUOUS] * 3 + [PACKED]


def test_the_same_form_is_the_same_model_and_others_share_its_weights() -> None:
    spec = ModelSpec("shapes", "none", "cpu")
    plain = load_model(spec)
    contiguous_spec = replace(spec, execution_config=ExecutionConfig(CONTIGUOUS))
    contiguous = load_model(contiguous_spec)
    assert load_model(contiguous_spec) is contiguous
    assert load_model(spec) is plain
    assert plain.form == ExecutionConfig()
    assert contiguous.graph is plain.graph
    unfolded = replace(spec, execution_config=ExecutionConfig(folding=False))
    assert load_model(unfolded).graph is not plain.graph


def test_models_keep_their_cuts_unfolded() -> None:
    folded, unfolded = (
        SplitModel(*build_model(ModelSpec("mobilenet_v2", "none")), CPU, ExecutionConfig(folding=folding))
        for folding in (True, False)
    )
    assert [(split_point.name, split_point.bytes_per_image) for split_point in folded.split_points] == [
        (split_point.name, split_point.bytes_per_image) for split_point in unfolded.split_points
    ]


@pytest.mark.parametrize(
    ("sizes", "compiled"),
    [
        ((16, 8, 4, 2, 1), (16, 1)),  # as graphs are recorded
        ((1, 16, 8, 16, 1, 2), (1, 16, 16, 1)),  # as a plan is warmed up, and then runs
        ((8, 1, 4, 16, 1, 8), (8, 1, 16, 1, 8)),  # batches grow
    ],
)
def test_one_image_and_a_full_batch_are_compiled(
    sizes: tuple[int, ...], compiled: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def compiler(part: nn.Module, **how: Any) -> Any:
        asked.append(how)
        return lambda x: part(x) + 1000

    monkeypatch.setattr(form_module.torch, "compile", compiler)
    part = Compiled(nn.Identity(), INDUCTOR)
    assert asked == [{"dynamic": False, "options": {"freezing": True, "max_autotune": False}}]
    assert tuple(size for size in sizes if (part(torch.zeros(size)) == 1000).all()) == compiled
