"""Merged and fused layers on a GPU: as the library's, measured against it, and in the graph of two models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from real_gpu import GPU, work_of_the_gpu
from torch import Tensor, fx, nn

from split_infer_ros.engines.cuda.model_streams import ModelStreams
from split_infer_ros.engines.merged_layers import merge_layers
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.vision_ops.fused_layers import FusedLayers
from split_infer_ros.vision_ops.implementations import ImplementationChoice, forget_choices, use_implementation
from split_infer_ros.vision_ops.launch_limits import multiprocessor_limits, residency_rejection
from split_infer_ros.vision_ops.merged_layers import MAX_REQUESTS, MergedLayer
from split_infer_ros.vision_ops.schedules import SEARCH_S, limit_search

# Factors are rounded to 10 bits (TF32, float16) or 7 (bfloat16), and up to 1,000 products are summed in another order.
TOLERANCE = {torch.float32: 5e-3, torch.float16: 1e-2, torch.bfloat16: 8e-2}
LAYERS: dict[str, tuple[Callable[..., nn.Conv2d | nn.Linear], tuple[int, ...]]] = {
    "convolution": (partial(nn.Conv2d, 96, 40, 3, 1, 1), (96, 27, 31)),
    "strided and dilated": (partial(nn.Conv2d, 24, 72, 5, 2, 4, 2), (24, 30, 29)),
    "dense": (partial(nn.Linear, 1000, 100), (1000,)),
}


@pytest.fixture(autouse=True)
def own_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # as in production
    forget_choices()
    limit_search(math.inf)  # the time of a test is bounded anyway
    yield
    forget_choices()
    limit_search(SEARCH_S)


def made(name: str, requests: int, dtype: torch.dtype = torch.float32) -> tuple[MergedLayer, Tensor]:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    x = torch.randn(requests, *shape, device=GPU, dtype=dtype)
    return MergedLayer(make(device=GPU, dtype=dtype).requires_grad_(False), 0.0, 6.0), x


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", LAYERS)
def test_a_merged_layer_gives_what_the_library_gives(name: str, dtype: torch.dtype) -> None:
    for requests in (1, 2, MAX_REQUESTS):
        layer, x = made(name, requests, dtype)
        with use_implementation(ImplementationChoice.TRITON):
            found = layer(x)
        torch.testing.assert_close(found, layer.by_library(x), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(("one", "two"), [("convolution", "dense"), ("strided and dilated", "convolution")])
def test_fused_layers_give_what_the_library_gives_by_one_launch(one: str, two: str) -> None:
    (first, x), (second, y) = made(one, 1), made(two, 2)
    fused = FusedLayers(first, second)
    with use_implementation(ImplementationChoice.TRITON):
        found = fused(x, y)
        kernels = [name for name in work_of_the_gpu(lambda: fused(x, y)) if "_fused" in name or "_merged" in name]
    for result, layer, inputs in zip(found, (first, second), (x, y), strict=True):
        torch.testing.assert_close(result, layer.by_library(inputs), atol=5e-3, rtol=5e-3)
    assert len(kernels) == 1


def test_the_compilers_resources_decide_what_is_fused() -> None:
    from split_infer_ros.vision_ops.kernels.merged_layer import fused_resources

    for requests in (1, MAX_REQUESTS):
        (first, x), (second, y) = made("convolution", requests), made("strided and dilated", requests)
        fused = FusedLayers(first, second)
        kernel = fused_resources((*first.arguments(x), *second.arguments(y)), **fused.options(x, y))
        assert 0 < kernel.registers <= 255
        rejection = residency_rejection(kernel, multiprocessor_limits(GPU))
        with use_implementation(ImplementationChoice.TRITON):
            found = fused(x, y)
        assert fused.is_fused is (rejection is None)
        for result, layer, inputs in zip(found, (first, second), (x, y), strict=True):
            torch.testing.assert_close(result, layer.by_library(inputs), atol=5e-3, rtol=5e-3)


def test_two_models_are_recorded_with_the_faster_kernels(tmp_path: Path) -> None:
    graphs = {}
    for name, channels in (("a", 32), ("b", 48)):
        torch.manual_seed(channels)
        net = nn.Sequential(
            nn.Conv2d(3, channels, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(channels, 16, 3),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        graphs[name] = fx.symbolic_trace(net.to(GPU).requires_grad_(False))
        merge_layers(graphs[name])
    device = Device.of(torch.zeros(1, device=GPU))
    stream = Stream(device)
    with torch.inference_mode():
        images = {name: torch.rand(2, 3, 64, 64, device=GPU) for name in graphs}
        expected = {name: graph(images[name]) for name, graph in graphs.items()}
        recorded = ModelStreams(device, stream).record(graphs, images)
        for name, given in images.items():
            recorded.inputs[name].copy_(given)
        recorded.launch()
        stream.fence().wait()
    for name, result in expected.items():
        torch.testing.assert_close(recorded.outputs[name], result, atol=5e-3, rtol=5e-3)
    lines = (tmp_path / "split_infer_ros" / "tuning.jsonl").read_text()
    assert '"operator":"merged layer"' in lines
    assert '"operator":"fused layers"' in lines
