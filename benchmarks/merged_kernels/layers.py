"""The layers of the paper's models, and what their kernels load and take from a GPU, each found in a process apart."""

from __future__ import annotations

import copy
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
import torchvision
from torch import nn

from benchmarks.merged_kernels.load_counts import count_loads
from split_infer_ros.vision_ops.fused_layers import FusedLayers
from split_infer_ros.vision_ops.launch_limits import KernelResources
from split_infer_ros.vision_ops.merged_layers import MergedLayer

MODELS = ("alexnet", "resnet18", "vgg16")
SIDE = 224  # pixels of the paper's images


@dataclass(frozen=True)
class Layer:
    """A convolution or dense layer of a model.

    Attributes:
        model: the model's name.
        name: the layer's path in the model.
        module: the layer, without memory for its weights.
        shape: the shape of its input, for one request.
    """

    model: str
    name: str
    module: nn.Conv2d | nn.Linear
    shape: tuple[int, ...]

    @property
    def kind(self) -> tuple[str, tuple[int, ...]]:
        """What decides the layer's loads: layers of one kind have as many."""
        return repr(self.module), self.shape

    def merged(self) -> MergedLayer:
        """Returns the layer with a ReLU, on the device of its module."""
        return MergedLayer(self.module, 0.0)

    def inputs(self, requests: int) -> torch.Tensor:
        """Returns inputs of this many requests, on the device of the module."""
        layout = torch.channels_last if len(self.shape) == 3 else torch.contiguous_format
        return torch.zeros((requests, *self.shape), device=self.module.weight.device).contiguous(memory_format=layout)


@dataclass(frozen=True)
class Loads:
    """The global loads of a layer for some requests, as elements.

    Attributes:
        separate: by a launch for each request.
        batch: by one launch of the template of convolutions, for all requests as one batch.
        merged: by one launch of the merged kernel.
    """

    separate: int
    batch: int
    merged: int


@cache
def layers_of(model: str) -> tuple[Layer, ...]:
    """Returns the convolutions and dense layers of a model at ``SIDE`` pixels, in the order in which they run."""
    found: list[Layer] = []
    with torch.device("meta"), torch.inference_mode():
        network = getattr(torchvision.models, model)(weights=None).eval().requires_grad_(False)

        def note(name: str, module: Any, inputs: Sequence[torch.Tensor]) -> None:
            found.append(Layer(model, name, module, tuple(inputs[0].shape[1:])))

        hooks = [
            module.register_forward_pre_hook(partial(note, name))
            for name, module in network.named_modules()
            if isinstance(module, (nn.Conv2d, nn.Linear))
        ]
        network(torch.empty(1, 3, SIDE, SIDE))
        for hook in hooks:
            hook.remove()
    return tuple(found)


@contextmanager
def processes(workers: int, **environment: str) -> Iterator[ProcessPoolExecutor]:
    """Yields processes that have some variables in their environment. Triton reads its own when it is imported.

    Args:
        workers: how many processes.
        environment: ``TRITON_INTERPRET="1"`` for ``loads_of``; "0" for ``resources_of``, and the folder
            ``TRITON_CACHE_DIR``.
    """
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        with mock.patch.dict(os.environ, environment):
            pool.submit(os.getpid).result()  # starts all of them
        yield pool


def loads_of(model: str, place: int, numbers: Sequence[int]) -> dict[int, Loads]:
    """Counts the loads of a model's layer; Triton interprets one program of each kernel.

    Args:
        model: the model's name.
        place: the layer's place among the model's layers.
        numbers: numbers of requests.

    Returns:
        The loads by the number of requests, of 1 besides ``numbers``. One request is one launch in each way.
    """
    from split_infer_ros.vision_ops.kernels.merged_layer import merged
    from split_infer_ros.vision_ops.kernels.windowed_convolution import windowed

    layer = _with_memory(layers_of(model)[place])
    module = layer.merged()

    def count(number: int) -> int:
        inputs = layer.inputs(number)
        launch = partial(merged, *module.arguments(inputs), warps=module.warps(inputs), **module.options(inputs))
        return count_loads(launch, max_programs=1).all_loads

    def count_batch(number: int) -> int:
        inputs = layer.inputs(number)
        options = {**module.options(inputs), "groups": 1, "unrolled": 1, "warps": module.warps(inputs)}
        return count_loads(partial(windowed, *module.arguments(inputs), **options), max_programs=1).all_loads

    alone = count(1)
    found = {number: Loads(number * alone, count_batch(number), count(number)) for number in numbers if number > 1}
    return {1: Loads(alone, alone, alone), **found}


def resources_of(layers: Sequence[tuple[str, int, int]], target: int) -> KernelResources:
    """Compiles the merged kernel of a layer, or the fused kernel of two, and returns what its programs take.

    Args:
        layers: for each layer, its model, its place among the model's layers, and the number of requests.
        target: the compute capability, 90 for sm_90.
    """
    from benchmarks.common.offline_triton import compile_launches
    from split_infer_ros.vision_ops.kernels.merged_layer import fused, merged

    modules = [layers_of(model)[place].merged() for model, place, _ in layers]
    inputs = [layers_of(model)[place].inputs(requests) for model, place, requests in layers]
    tensors = [each for module, given in zip(modules, inputs, strict=True) for each in module.arguments(given)]
    if len(layers) == 1:
        launch = partial(merged, *tensors, warps=modules[0].warps(inputs[0]), **modules[0].options(inputs[0]))
    else:
        launch = partial(fused, *tensors, **FusedLayers(*modules).options(*inputs))
    (kernel,) = compile_launches(launch, target)
    return KernelResources(kernel.registers, kernel.shared_bytes, kernel.warps)


def _with_memory(layer: Layer) -> Layer:
    """Returns the layer with memory on the CPU that is never written, so that the system gives only what is read."""
    module = copy.deepcopy(layer.module)
    for name, parameter in layer.module.named_parameters():
        setattr(module, name, nn.Parameter(torch.zeros(parameter.shape), requires_grad=False))
    return Layer(layer.model, layer.name, module, layer.shape)
