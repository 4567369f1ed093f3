"""Convolutions by templates on a GPU: as cuDNN's, in every schedule that it takes, and chosen by measurement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from real_gpu import GPU
from torch import nn

from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.search.space import Config
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.vision_ops.convolution import ScheduledConv2d
from split_infer_ros.vision_ops.implementations import ImplementationChoice, use_implementation
from split_infer_ros.vision_ops.launch_limits import depthwise_rejection, pointwise_rejection
from split_infer_ros.vision_ops.schedules import SPACES, ConvolutionTemplate

# Factors are rounded to 10 bits (TF32, float16) or 7 (bfloat16), and 96 products are summed in another order.
TOLERANCE = {torch.float32: 5e-3, torch.float16: 1e-2, torch.bfloat16: 8e-2}
EVERY = 47  # schedule that this GPU can launch is tried: each takes a second or more to compile
KERNEL = 3


@pytest.fixture(autouse=True)
def own_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # as in production: the templates do as cuDNN does
    monkeypatch.setattr("split_infer_ros.vision_ops.schedules._cache", {})
    monkeypatch.setattr("split_infer_ros.vision_ops.implementations._cache", {})


def admitted(template: ConvolutionTemplate, dtype: torch.dtype) -> list[Config]:
    """The schedules that the package itself would try here."""
    from split_infer_ros.vision_ops.kernels.gpu import gpu_limits  # only here: it imports Triton

    def rule(schedule: Config) -> str | None:
        if template is ConvolutionTemplate.POINTWISE:
            return pointwise_rejection(schedule, gpu_limits(GPU), dtype, tf32=True)
        return depthwise_rejection(schedule, KERNEL)

    return list(replace(SPACES[template], rule=rule))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("template", ConvolutionTemplate)
def test_schedules_give_what_cudnn_gives(
    template: ConvolutionTemplate, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    convolution = (
        nn.Conv2d(96, 40, 1)
        if template is ConvolutionTemplate.POINTWISE
        else nn.Conv2d(96, 96, KERNEL, 2, 1, groups=96)
    )
    convolution.requires_grad_(False).to(GPU, dtype)
    x = torch.randn(2, 96, 27, 31, device=GPU, dtype=dtype).contiguous(memory_format=torch.channels_last)
    scheduled = ScheduledConv2d(convolution, 0.0, 6.0)
    expected = convolution(x).clamp(0, 6)
    for schedule in admitted(template, dtype)[::EVERY]:
        monkeypatch.setattr("split_infer_ros.vision_ops.convolution.best_schedule", lambda *_, s=schedule, **__: s)
        with use_implementation(ImplementationChoice.TRITON):
            found = scheduled(x)
        torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_network_is_scheduled_by_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("split_infer_ros.vision_ops.schedules.MAX_TRIALS", 2)
    images = torch.randn(1, 3, 224, 224, device=GPU)
    expected = load_model(ModelSpec("mobilenet_v2", "random", "cuda")).backbone("features.4")(images)
    found = load_model(
        ModelSpec(
            "mobilenet_v2", weights="random", device="cuda", execution_config=ExecutionConfig(Convolutions.TRITON)
        )
    ).backbone("features.4")(images)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 5e-3 * other.abs().max()
    lines = (tmp_path / "split_infer_ros" / "tuning.jsonl").read_text()
    assert '"operator":"pointwise schedule"' in lines
    assert '"operator":"depthwise"' in lines
