"""Convolutions by templates, run by Triton's interpreter."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from interpreted_kernels import Call, interpreter
from torch import fx, nn

from split_infer_ros.engines.scheduled_convolutions import limits_of, schedule_convolutions
from split_infer_ros.vision_ops.convolution import ScheduledConv2d, arranged_weights, template_of
from split_infer_ros.vision_ops.schedules import SPACES, ConvolutionTemplate

INF = float("inf")
POINTWISE, DEPTHWISE, WINDOWED = ConvolutionTemplate


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    with interpreter() as call:
        yield call


def case(convolution: nn.Conv2d, shape: tuple[int, ...]) -> tuple[torch.Tensor, ScheduledConv2d]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=random), ScheduledConv2d(convolution, 0.0, 0.5)


@pytest.mark.parametrize(("in_channels", "out_channels", "unrolled"), [(32, 16, 1), (23, 21, 2)])
def test_pointwise_equals_torch(call: Call, in_channels: int, out_channels: int, unrolled: int) -> None:
    torch.manual_seed(0)
    maps, scheduled = case(nn.Conv2d(in_channels, out_channels, 1).requires_grad_(False), (2, in_channels, 3, 7))
    found = call(
        "convolution",
        "pointwise",
        maps,
        scheduled.weights,
        scheduled.bias,
        low=0.0,
        high=0.5,
        tf32=False,
        pixels=32,
        channels=16,
        depth=16,
        unrolled=unrolled,
        warps=4,
    )
    torch.testing.assert_close(found, scheduled(maps), atol=1e-5, rtol=1e-5)
    assert 0 < found.mean() < 0.5


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "unrolled"), [(3, 1, 1, True), (3, 2, 1, False), (5, 2, 0, True)]
)
def test_depthwise_equals_torch(call: Call, kernel: int, stride: int, padding: int, unrolled: bool) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(20, 20, kernel, stride, padding, groups=20, bias=unrolled).requires_grad_(False)
    maps, scheduled = case(convolution, (2, 20, 7, 9))
    found = call(
        "convolution",
        "depthwise",
        maps,
        scheduled.weights,
        scheduled.bias,
        low=0.0,
        high=0.5,
        kernel=kernel,
        stride=stride,
        padding=padding,
        rows=2,
        columns=4,
        channels=16,
        unrolled=unrolled,
        warps=4,
    )
    torch.testing.assert_close(found, scheduled(maps), atol=1e-5, rtol=1e-5)
    assert 0 < found.mean() < 0.5


@pytest.mark.parametrize(
    "convolution",
    [
        partial(nn.Conv2d, 32, 16, 3, 1, 1),
        partial(nn.Conv2d, 23, 21, 3, 2, 1, bias=False),
        partial(nn.Conv2d, 20, 20, 5, 1, 4, 2),
        partial(nn.Conv2d, 40, 24, 1, 2),
        partial(nn.Conv2d, 24, 36, 3, 2, 1, 1, 4),
        partial(nn.Conv2d, 8, 8, 1, 1, 1),
    ],
    ids=["dense", "strided", "dilated", "strided 1x1", "grouped", "padded 1x1"],
)
@pytest.mark.parametrize("unrolled", [1, 2])
def test_windowed_equals_torch(call: Call, convolution: Callable[[], nn.Conv2d], unrolled: int) -> None:
    """Up to 500 products of float32 are summed in another order than torch's; their sums are below 4."""
    torch.manual_seed(0)
    plain = convolution().requires_grad_(False)
    maps, scheduled = case(plain, (2, plain.in_channels, 9, 7))
    assert template_of(plain) is WINDOWED
    found = call(
        "windowed_convolution",
        "windowed",
        maps,
        scheduled.weights,
        scheduled.bias,
        tf32=False,
        **scheduled.kernel_options,
        pixels=32,
        channels=16,
        depth=16,
        unrolled=unrolled,
        warps=4,
    )
    torch.testing.assert_close(found, scheduled(maps), atol=1e-5, rtol=1e-5)
    assert 0 < found.mean() < 0.5


def test_nan_stays_nan(call: Call) -> None:
    maps = torch.full((1, 16, 2, 2), torch.nan).contiguous(memory_format=torch.channels_last)
    found = call(
        "convolution",
        "pointwise",
        maps,
        torch.ones(16, 16),
        torch.zeros(16),
        low=0.0,
        high=6.0,
        tf32=False,
        pixels=16,
        channels=16,
        depth=16,
        unrolled=1,
        warps=4,
    )
    assert found.isnan().all()


def test_schedules_fit_their_templates() -> None:
    for template in (POINTWISE, WINDOWED):
        for name in ("pixels", "channels", "depth"):
            assert all(value >= 16 and value.bit_count() == 1 for value in SPACES[template].knobs[name])
    for name in ("rows", "columns", "channels"):
        assert all(value.bit_count() == 1 for value in SPACES[DEPTHWISE].knobs[name])


@pytest.mark.parametrize(
    ("convolution", "template"),
    [
        (nn.Conv2d(8, 4, 1), POINTWISE),
        (nn.Conv2d(8, 8, 3, 2, 1, groups=8), DEPTHWISE),
        (nn.Conv2d(8, 8, 3), WINDOWED),
        (nn.Conv2d(8, 8, 1, 2), WINDOWED),
        (nn.Conv2d(8, 8, 1, padding=1), WINDOWED),
        (nn.Conv2d(8, 16, 5, 2, 4, 2, groups=2), WINDOWED),
        (nn.Conv2d(8, 16, 3, groups=4), None),
        (nn.Conv2d(3, 16, 3), None),
        (nn.Conv2d(8, 16, 3, groups=8), None),
        (nn.Conv2d(8, 8, 3, dilation=(1, 2)), None),
        (nn.Conv2d(8, 8, (1, 3), groups=8), None),
        (nn.Conv2d(8, 8, 3, padding="same", groups=8), None),
        (nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect", groups=8), None),
        (nn.Conv2d(8, 8, 3, dilation=2, groups=8), None),
        (nn.Conv2d(8, 8, 1, dtype=torch.float64), None),
        (nn.Identity(), None),
    ],
    ids=repr,
)
def test_which_convolutions_have_a_template(convolution: nn.Module, template: ConvolutionTemplate | None) -> None:
    assert template_of(convolution) is template


@pytest.mark.parametrize("template", [POINTWISE, WINDOWED])
def test_weights_that_are_channels_last_are_not_copied(template: ConvolutionTemplate) -> None:
    convolution = nn.Conv2d(8, 8, 1 if template is POINTWISE else 3).to(memory_format=torch.channels_last)
    assert template_of(convolution) is template
    assert arranged_weights(convolution, template).data_ptr() == convolution.weight.data_ptr()


def test_a_scheduled_network_keeps_its_results() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.ReLU6(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.SiLU(),
        nn.Conv2d(8, 4, 1),
        nn.SiLU(),
    ).requires_grad_(False)
    graph, images = fx.symbolic_trace(net), torch.randn(1, 3, 12, 12)
    schedule_convolutions(graph)
    torch.testing.assert_close(
        graph(images), net(images), atol=1e-5, rtol=1e-5
    )  # by other kernels, which sum in another order
    assert sum(isinstance(each, ScheduledConv2d) for each in graph.modules()) == 4
    assert limits_of(nn.ReLU6()) == (0, 6)
    assert limits_of(nn.ReLU()) == (0, INF)
    assert limits_of(nn.SiLU()) is None
