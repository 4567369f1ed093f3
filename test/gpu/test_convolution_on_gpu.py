"""Convolutions by templates on a GPU: as cuDNN's, in every schedule that it takes, and chosen by measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from real_gpu import GPU
from torch import nn

from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.search.space import Config
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.vision_ops.convolution import ScheduledConv2d, template_of
from split_infer_ros.vision_ops.implementations import ImplementationChoice, forget_choices, use_implementation
from split_infer_ros.vision_ops.launch_limits import depthwise_rejection, gpu_limits, tiled_rejection
from split_infer_ros.vision_ops.schedules import SEARCH_S, SPACES, ConvolutionTemplate, forget_schedules, limit_search

# Factors are rounded to 10 bits (TF32, float16) or 7 (bfloat16), and up to 2,400 products are summed in another order.
TOLERANCE = {torch.float32: 5e-3, torch.float16: 1e-2, torch.bfloat16: 8e-2}
EVERY = 137  # schedule that this GPU can launch is tried: each takes a second or more to compile
KERNEL = 3
CONVOLUTIONS: dict[str, Callable[[], nn.Conv2d]] = {
    "pointwise": partial(nn.Conv2d, 96, 40, 1),
    "depthwise": partial(nn.Conv2d, 96, 96, KERNEL, 2, 1, groups=96),
    "dense": partial(nn.Conv2d, 96, 40, KERNEL, 1, 1),
    "dense, strided and dilated": partial(nn.Conv2d, 96, 40, 5, 2, 4, 2),
    "strided 1x1": partial(nn.Conv2d, 96, 40, 1, 2),
    "grouped": partial(nn.Conv2d, 96, 48, KERNEL, 1, 1, groups=4),
}


@pytest.fixture(autouse=True)
def own_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # as in production: the templates do as cuDNN does
    forget_schedules()
    forget_choices()
    limit_search(math.inf)  # the time of a test is bounded anyway
    yield
    forget_schedules()
    forget_choices()
    limit_search(SEARCH_S)


def admitted(template: ConvolutionTemplate, dtype: torch.dtype) -> list[Config]:
    """The schedules that the package itself would try here."""

    def rule(schedule: Config) -> str | None:
        if template is ConvolutionTemplate.DEPTHWISE:
            return depthwise_rejection(schedule, KERNEL)
        return tiled_rejection(schedule, gpu_limits(GPU), dtype, tf32=True)

    return list(replace(SPACES[template], rule=rule))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_schedules_give_what_cudnn_gives(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    convolution = CONVOLUTIONS[name]()
    template = template_of(convolution)
    assert template is not None
    convolution.requires_grad_(False).to(GPU, dtype)
    x = torch.randn(2, 96, 27, 31, device=GPU, dtype=dtype).contiguous(memory_format=torch.channels_last)
    scheduled = ScheduledConv2d(convolution, 0.0, 6.0)
    expected = convolution(x).clamp(0, 6)
    for schedule in admitted(template, dtype)[::EVERY]:
        monkeypatch.setattr("split_infer_ros.vision_ops.convolution.best_schedule", lambda *_, s=schedule, **__: s)
        with use_implementation(ImplementationChoice.TRITON):
            found = scheduled(x)
        torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("name", "split_point", "operators"),
    [
        ("mobilenet_v2", "features.4", ("pointwise schedule", "depthwise")),
        ("resnet18", "layer2", ("windowed schedule", "windowed")),
    ],
)
def test_a_network_is_scheduled_by_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, split_point: str, operators: tuple[str, ...]
) -> None:
    for limit in ("MAX_TRIALS", "MAX_TRIALS_WITH_OTHERS"):
        monkeypatch.setattr(f"split_infer_ros.vision_ops.schedules.{limit}", 2)
    images = torch.randn(1, 3, 224, 224, device=GPU)
    expected = load_model(ModelSpec(name, "random", "cuda")).backbone(split_point)(images)
    config = ExecutionConfig(Convolutions.TRITON)
    scheduled = load_model(ModelSpec(name, weights="random", device="cuda", execution_config=config))
    for one, other in zip(scheduled.backbone(split_point)(images), expected, strict=True):
        assert (one - other).abs().max() <= 5e-3 * other.abs().max()
    lines = (tmp_path / "split_infer_ros" / "tuning.jsonl").read_text()
    for operator in operators:
        assert f'"operator":"{operator}"' in lines
