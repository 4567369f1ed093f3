"""Merged and fused layers whose kernels Triton interprets, as if the CPU were a GPU.

The functions run in a process of their own, because Triton must be told so before it is imported.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn

from benchmarks.merged_kernels.layers import processes
from benchmarks.merged_kernels.load_counts import LoadCount, count_loads
from split_infer_ros.engines.fused_graphs import fuse_backbones, fuse_graphs
from split_infer_ros.engines.merged_layers import merge_layers
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.vision_ops.fused_layers import FusedLayers
from split_infer_ros.vision_ops.implementations import (
    ImplementationChoice,
    forget_choices,
    record_task,
    use_implementation,
)
from split_infer_ros.vision_ops.launch_limits import KernelResources, MultiprocessorLimits
from split_infer_ros.vision_ops.merged_layers import MergedLayer, can_be_merged

LONG_S = 100.0
MODULE = "split_infer_ros.vision_ops"

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


def are_fused(specs: Sequence[LayerSpec], registers: int | Exception, calls: int = 2) -> tuple[list[bool], int]:
    """Calls two layers whose fused kernel takes so many registers, or that cannot be compiled.

    Returns:
        Whether each call fused the layers, and how often the compiler was asked.
    """
    made = [_made(spec) for spec in specs]
    layers, found = FusedLayers(*(MergedLayer(layer) for layer, _ in made)), []
    with _as_on_a_gpu(registers) as compile_kernel:
        for _ in range(calls):
            results = layers(*(x for _, x in made))
            found.append(layers.is_fused)
            for result, (layer, x) in zip(results, made, strict=True):
                torch.testing.assert_close(result, layer(x), atol=1e-4, rtol=1e-4)
    return found, compile_kernel.call_count


def similar_pairs(folder: str, fitting: Sequence[LayerSpec], other: Sequence[LayerSpec]) -> dict[str, Any]:
    """Calls two pairs of layers that have one task in the database. Programs of the other pair cannot be resident.

    Args:
        folder: where the database is made.
        fitting, other: the pairs.

    Returns:
        "rejected": how many records the first call of the other pair left. "measured": how many that of the fitting
        pair left. "fused": whether calls of both pairs are fused if the records say that this is faster.
        "warnings": what was logged as a warning.
    """
    pairs = [[_made(spec) for spec in specs] for specs in (fitting, other)]
    fit, misfit = (FusedLayers(*(MergedLayer(layer) for layer, _ in pair)) for pair in pairs)
    (xy, other_xy), found = [[x for _, x in pair] for pair in pairs], {}
    task = record_task("fused layers", xy[0], fit.sizes(*xy))
    assert task == record_task("fused layers", other_xy[0], misfit.sizes(*other_xy))
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=folder), _Warnings() as warnings:
        key = Key.here("cpu")
        with _as_on_a_gpu(forced=ImplementationChoice.MEASURED) as compile_kernel:
            compile_kernel.side_effect = lambda tensors, **_: KernelResources(
                100 if tensors[0].shape == xy[0].shape else 200, shared_bytes=1 << 14, warps=8
            )
            with mock.patch(f"{MODULE}.implementations.time_calls", _time_one_call):
                for name, layers, inputs in (("rejected", misfit, other_xy), ("measured", fit, xy)):
                    layers(*inputs)
                    found[name] = len(Database().find(key, task))
            forget_choices()
            for choice, seconds in ((ImplementationChoice.PLAIN, 1.0), (ImplementationChoice.TRITON, 1e-9)):
                Database().add([key.record(task, {"form": choice.value}, [seconds] * 20, time=time.time())])
            found["fused"] = [layers(*inputs) and layers.is_fused for layers, inputs in ((fit, xy), (misfit, other_xy))]
    forget_choices()
    return {**found, "warnings": warnings.lines}


def nested_searches(folder: str, specs: Sequence[LayerSpec]) -> int:
    """Measures two layers and their fused kernel, with a new database in a folder.

    Returns:
        How many searches began while another one took its time.
    """
    made, searches = [_made(spec) for spec in specs], _Searches()
    forget_choices()
    with (
        mock.patch.dict(os.environ, XDG_CACHE_HOME=folder),
        _as_on_a_gpu(forced=ImplementationChoice.MEASURED),
        searches.patched(),
        mock.patch(f"{MODULE}.implementations.time_calls", _time_one_call),
    ):
        FusedLayers(*(MergedLayer(layer) for layer, _ in made))(*(x for _, x in made))
    forget_choices()
    assert searches.begun == 3
    return searches.nested


def can_fuse_backbones(nets: Sequence[nn.Module], shapes: Sequence[tuple[int, ...]]) -> bool:
    """Returns whether ``fuse_backbones`` fuses two nets for images of these shapes."""
    graphs = {str(place): fx.symbolic_trace(net) for place, net in enumerate(nets)}
    for graph in graphs.values():
        merge_layers(graph)
    with _as_on_a_gpu():
        return (
            fuse_backbones(graphs, {str(place): torch.zeros(shape) for place, shape in enumerate(shapes)}) is not None
        )


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


def _time_one_call(key: Key, task: Any, config: Any, run: Callable[[], object], **_: object) -> Record:
    """Stands in for ``time_calls``, because interpreted kernels take long."""
    try:
        run()
    except Exception as error:
        return key.record(task, config, [], time=time.time(), error=str(error))
    return key.record(task, config, [1.0], time=time.time())


class _Searches:
    """Counts searches that begin while another one takes its time."""

    def __init__(self) -> None:
        self.begun, self.nested, self._depth = 0, 0, 0

    @contextmanager
    def _search_time(self) -> Iterator[bool]:
        self.begun += 1
        self.nested += self._depth > 0
        self._depth += 1
        try:
            yield True
        finally:
            self._depth -= 1

    def patched(self) -> AbstractContextManager[object]:
        stack = ExitStack()
        for module in ("fused_layers", "merged_layers"):
            stack.enter_context(mock.patch(f"{MODULE}.{module}.search_time", self._search_time))
        return stack


class _Warnings(logging.Handler):
    """Keeps the lines that are logged as warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> _Warnings:
        logging.getLogger("split_infer_ros").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("split_infer_ros").removeHandler(self)


@contextmanager
def _as_on_a_gpu(
    registers: int | Exception = 100, forced: ImplementationChoice = ImplementationChoice.TRITON
) -> Iterator[mock.Mock]:
    """Has all layers take the kernels, unless another choice is given.

    The compiler is said to give a fused kernel so many registers, or to raise the error. Yields what stands in for it.
    """
    answer = registers if isinstance(registers, Exception) else [KernelResources(registers, 1 << 14, warps=8)]
    with (
        mock.patch.object(torch.Tensor, "is_cuda", True),
        mock.patch(f"{MODULE}.kernels.merged_layer.fused_resources") as compile_kernel,
        mock.patch(f"{MODULE}.fused_layers.multiprocessor_limits", return_value=MultiprocessorLimits(100 << 10)),
        use_implementation(forced),
        torch.inference_mode(),
    ):
        compile_kernel.side_effect = answer if isinstance(answer, Exception) else itertools.cycle(answer)
        yield compile_kernel


def _made(spec: LayerSpec) -> Made:
    kind, arguments, shape = spec
    torch.manual_seed(0)
    layer = getattr(nn, kind)(**arguments).requires_grad_(False)
    return layer, torch.randn(shape)
