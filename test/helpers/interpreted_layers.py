"""Merged and fused layers whose kernels Triton interprets, as if the CPU were a GPU.

The functions run in a process of their own, because Triton must be told so before it is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn

from benchmarks.merged_kernels.layers import processes
from benchmarks.merged_kernels.load_counts import LoadCount, count_loads
from split_infer_ros.engines.fused_graphs import fuse_graphs
from split_infer_ros.engines.merged_layers import merge_layers
from split_infer_ros.vision_ops.implementations import ImplementationChoice, use_implementation
from split_infer_ros.vision_ops.launch_limits import KernelResources, MultiprocessorLimits
from split_infer_ros.vision_ops.merged_layers import FusedLayers, MergedLayer, can_be_merged

LONG_S = 100.0

Made = tuple[nn.Conv2d | nn.Linear, Tensor]  # a layer and its inputs
LayerSpec = tuple[str, dict[str, int], tuple[int, ...]]  # Conv2d or Linear, its arguments, the shape of its inputs


@contextmanager
def interpreting_process() -> Iterator[Callable[..., Any]]:
    """Yields a function that calls a function of this module in the process that interprets."""
    with processes(1, TRITON_INTERPRET="1") as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result(LONG_S)


def difference(specs: Sequence[LayerSpec]) -> float:
    """Returns how far a merged layer's result, or two fused ones', is from torch's: the largest difference.

    Args:
        specs: one layer, which is merged, or two, which are fused.
    """
    made = [_made(spec) for spec in specs]
    layers, inputs = [MergedLayer(layer, 0.0, 2.0) for layer, _ in made], [x for _, x in made]
    expected = [layer.by_library(x) for layer, x in zip(layers, inputs, strict=True)]
    with _as_on_a_gpu():
        found = [layers[0](inputs[0])] if len(layers) == 1 else FusedLayers(*layers)(*inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
        assert one.shape == other.shape
    return max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))


def counts(specs: Sequence[LayerSpec], max_programs: int | None = None) -> LoadCount:
    """Counts the loads of a merged layer's launch, or of two fused ones'; see ``count_loads``."""
    from split_infer_ros.vision_ops.kernels.merged_layer import fused, merged

    made = [_made(spec) for spec in specs]
    layers, inputs = [MergedLayer(layer) for layer, _ in made], [x for _, x in made]
    tensors = [each for layer, x in zip(layers, inputs, strict=True) for each in layer.arguments(x)]
    if len(layers) == 1:
        launch = partial(merged, *tensors, warps=layers[0].warps(inputs[0]), **layers[0].options(inputs[0]))
    else:
        launch = partial(fused, *tensors, **FusedLayers(*layers).options(*inputs))
    return count_loads(launch, max_programs)


def refusal(specs: Sequence[LayerSpec], registers: int) -> str:
    """Returns the error of two layers whose fused kernel takes so many registers; empty if they are fused."""
    made = [_made(spec) for spec in specs]
    try:
        with _as_on_a_gpu(registers):
            FusedLayers(*(MergedLayer(layer) for layer, _ in made))(*(x for _, x in made))
    except Exception as error:
        return str(error)
    return ""


def differences_of_models(nets: Sequence[nn.Module], shapes: Sequence[tuple[int, ...]]) -> list[float]:
    """Returns how far the results of two fused models are from torch's, for random images of these shapes."""
    torch.manual_seed(0)
    images = [torch.randn(shape) for shape in shapes]
    graphs = [fx.symbolic_trace(net) for net in nets]
    for graph in graphs:
        merge_layers(graph)
        assert not any(can_be_merged(module) for module in graph.children()), "all layers are merged"
    joint = fuse_graphs(*graphs)
    with torch.inference_mode():
        expected = [net(x) for net, x in zip(nets, images, strict=True)]
        with _as_on_a_gpu():
            found = joint(*images)
    return [float((one - other).abs().max()) for one, other in zip(found, expected, strict=True)]


@contextmanager
def _as_on_a_gpu(registers: int = 100) -> Iterator[None]:
    """Has all layers take the kernels. The compiler is said to give a fused kernel so many registers."""
    module = "split_infer_ros.vision_ops"
    resources = KernelResources(registers, shared_bytes=1 << 14, warps=8)
    with (
        mock.patch.object(torch.Tensor, "is_cuda", True),
        mock.patch(f"{module}.kernels.merged_layer.fused_resources", return_value=resources),
        mock.patch(f"{module}.merged_layers.multiprocessor_limits", return_value=MultiprocessorLimits(100 << 10)),
        use_implementation(ImplementationChoice.TRITON),
        torch.inference_mode(),
    ):
        yield


def _made(spec: LayerSpec) -> Made:
    kind, arguments, shape = spec
    torch.manual_seed(0)
    layer = getattr(nn, kind)(**arguments).requires_grad_(False)
    return layer, torch.randn(shape)
