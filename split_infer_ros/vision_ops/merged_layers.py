"""Layers of several requests in one launch, and layers of two models in one launch (paper 001, §II-B).

The paper calls the first a merged kernel (Algorithm 1) and the second a fused kernel (Algorithm 2). A layer is a
convolution or a dense layer, with a clamping activation behind it. On a GPU, the kernels of this package compute it if
they were measured to be faster than the library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.captures import is_recording
from split_infer_ros.runtime.device import Device
from split_infer_ros.vision_ops.convolution import CONVOLUTION_DTYPES
from split_infer_ros.vision_ops.implementations import ImplementationChoice, run_fastest
from split_infer_ros.vision_ops.launch_limits import multiprocessor_limits, residency_rejection
from split_infer_ros.vision_ops.schedules import search_time

MAX_REQUESTS = 5  # the paper's window; the sums of more do not fit into the registers of Turing and Orin
MAX_REQUESTS_OF_FEW_WARPS = 2  # of a convolution; with more, more warps share a program and its sums
FEW_WARPS, MANY_WARPS = 4, 8
TILE_PIXELS = (16, 32, 64)  # of which a layer takes the smallest that holds its map, or the last
TILE_CHANNELS, TILE_DEPTH = 64, 16


def can_be_merged(layer: nn.Module) -> bool:
    """Returns whether the kernels can compute a layer.

    It is a dense layer, or a convolution of one group with a square window and zero padding. Stride, padding and
    dilation are the same for rows and columns.
    """
    if type(layer) is nn.Linear:
        return layer.weight.dtype in CONVOLUTION_DTYPES
    if type(layer) is not nn.Conv2d or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    pairs = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    return layer.groups == 1 and layer.weight.dtype in CONVOLUTION_DTYPES and all(len(set(pair)) == 1 for pair in pairs)


class MergedLayer(nn.Module):
    """A convolution or dense layer with clamped results. One launch computes it for all requests of a batch.

    It uses the weights and bias that the layer has when this module is made. On a CPU, and for more than
    ``MAX_REQUESTS`` requests, the library computes the layer. On a GPU, measurements choose.

    Args:
        layer: a layer for which ``can_be_merged`` is true. Its parameters stay on their device.
        low, high: the limits to which results are clamped.

    Attributes:
        weights: (C', kernel * kernel * C), for C input and C' output channels. The places of the window come row by
            row, each with all channels.
        bias: (C',); zeros if the layer has none.

    Raises:
        ValueError: the kernels cannot compute the layer.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, low: float = -math.inf, high: float = math.inf) -> None:
        super().__init__()
        if not can_be_merged(layer):
            raise ValueError(
                f"{layer} cannot be merged; merged kernels take dense layers, and convolutions of one group with a "
                "square window and zero padding, in float32, float16 or bfloat16."
            )
        self._plain, self._low, self._high = layer, low, high
        self._is_convolution = isinstance(layer, nn.Conv2d)
        weights = layer.weight.detach()
        self._numbers = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1}
        if isinstance(layer, nn.Conv2d):
            weights = weights.permute(0, 2, 3, 1).flatten(1).contiguous()
            numbers = layer.kernel_size, layer.stride, layer.padding, layer.dilation
            self._numbers = {name: int(pair[0]) for name, pair in zip(self._numbers, numbers, strict=True)}
        self.weights = weights
        self.bias = weights.new_zeros(len(weights)) if layer.bias is None else layer.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Computes the layer for N requests, and clamps the result.

        Args:
            x: (N, C, H, W) for a convolution, and (N, C) or (N, ..., C) for a dense layer.
        """
        if not (x.is_cuda and self.takes(x)):
            return self.by_library(x)
        implementations = {
            ImplementationChoice.PLAIN: lambda: self.by_library(x),
            ImplementationChoice.TRITON: lambda: self._merged(x),
        }
        return run_fastest("merged layer", x, self.sizes(x), implementations, search_time=search_time)

    def takes(self, x: Tensor) -> bool:
        """Returns whether the kernels take these inputs: those of 1 to ``MAX_REQUESTS`` requests."""
        return 1 <= len(x) <= MAX_REQUESTS and x.dim() == (4 if self._is_convolution else 2)

    def sizes(self, x: Tensor) -> list[int]:
        """Returns the numbers on which the layer's time depends."""
        return [*x.shape, len(self.weights), self._numbers["kernel"], self._numbers["stride"]]

    def arguments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the maps (N, C, H, W), the weights and the bias, as the kernels take them.

        The N requests of a dense layer are the rows of one map (1, C, N, 1). So one tile has all of them.
        """
        return x if self._is_convolution else x.t()[None, :, :, None], self.weights, self.bias

    def result_of(self, maps: Tensor) -> Tensor:
        """Returns the layer's result, given what a kernel returned for ``arguments``."""
        return maps if self._is_convolution else maps[0, :, :, 0].t()

    def options(self, x: Tensor) -> dict[str, Any]:
        """Returns the keywords of ``layer_arguments`` in ``vision_ops/kernels/merged_layer.py`` for these inputs."""
        backend: Any = torch.backends.cudnn if self._is_convolution else torch.backends.cuda.matmul
        return {
            "low": self._low,
            "high": self._high,
            "tf32": backend.allow_tf32,
            **self._numbers,
            "pixels": next((size for size in TILE_PIXELS if size >= self._places(x)), TILE_PIXELS[-1]),
            "channels": TILE_CHANNELS,
            "depth": TILE_DEPTH,
        }

    def warps(self, x: Tensor) -> int:
        """Returns how many warps share a program; more if it holds the sums of several requests."""
        many = self._is_convolution and len(x) > MAX_REQUESTS_OF_FEW_WARPS
        return MANY_WARPS if many else FEW_WARPS

    def by_library(self, x: Tensor) -> Tensor:
        """Computes the layer by torch, as a reference and where no kernel is faster."""
        result: Tensor = self._plain(x)
        if self._low == -math.inf and self._high == math.inf:
            return result
        return functional.hardtanh(result, self._low, self._high)

    def _places(self, x: Tensor) -> int:
        """Returns the number of pixels of the result's map, which has those of one request for a convolution."""
        if not self._is_convolution:
            return len(x)
        n = self._numbers
        reach = n["dilation"] * (n["kernel"] - 1) + 1
        rows, columns = ((size + 2 * n["padding"] - reach) // n["stride"] + 1 for size in x.shape[2:])
        return rows * columns

    def _merged(self, x: Tensor) -> Tensor:
        from split_infer_ros.vision_ops.kernels.merged_layer import merged  # only here: Triton is optional

        return self.result_of(merged(*self.arguments(x), warps=self.warps(x), **self.options(x)))


class FusedLayers(nn.Module):
    """Layers of two models, which one launch computes, each for its own requests.

    On a CPU, each layer computes its inputs alone. On a GPU, each does so if that was measured to be faster, or if
    programs of both layers cannot be resident on one multiprocessor together.

    Args:
        first, second: the two layers.
    """

    def __init__(self, first: MergedLayer, second: MergedLayer) -> None:
        super().__init__()
        self._first, self._second = first, second

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the first layer of x and the second layer of y. Inputs are those of ``MergedLayer``."""
        if not (x.is_cuda and y.is_cuda and self._first.takes(x) and self._second.takes(y)):
            return self._first(x), self._second(y)
        implementations = {
            ImplementationChoice.PLAIN: lambda: (self._first(x), self._second(y)),
            ImplementationChoice.TRITON: lambda: self._fused(x, y),
        }
        sizes = [*self._first.sizes(x), *self._second.sizes(y)]
        return run_fastest("fused layers", x, sizes, implementations, search_time=search_time)

    def options(self, x: Tensor, y: Tensor) -> Mapping[str, Any]:
        """Returns the keywords of ``fused`` in ``vision_ops/kernels/merged_layer.py`` for these inputs."""
        warps = max(self._first.warps(x), self._second.warps(y))
        return {"first": self._first.options(x), "second": self._second.options(y), "warps": warps}

    def _fused(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from split_infer_ros.vision_ops.kernels.merged_layer import fused, fused_resources  # only here: it is optional

        tensors = *self._first.arguments(x), *self._second.arguments(y)
        options = self.options(x, y)
        if not is_recording(Device.of(x)):  # what is recorded ran before
            kernel = fused_resources(tensors, **options)
            rejection = residency_rejection(kernel, multiprocessor_limits(x.device))
            if rejection is not None:
                raise ConfigurationError(f"Programs of both layers cannot be resident together: {rejection}")
        one, two = fused(*tensors, **options)
        return self._first.result_of(one), self._second.result_of(two)
