"""Convolutions and dense layers of several requests in one launch (paper 001, §II-B, Algorithm 1).

The paper calls such a launch a merged kernel. A clamping activation can follow the layer. On a GPU, the kernels of this
package compute it if they were measured to be faster than the library.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from split_infer_ros.vision_ops.convolution import CONVOLUTION_DTYPES, is_square
from split_infer_ros.vision_ops.implementations import ImplementationChoice, Size, run_fastest
from split_infer_ros.vision_ops.schedules import search_time
from split_infer_ros.vision_ops.window import window_places

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
    return is_square(layer) and layer.groups == 1


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
            weights = weights.permute(0, 2, 3, 1).flatten(1)
            numbers = layer.kernel_size, layer.stride, layer.padding, layer.dilation
            self._numbers = {name: int(pair[0]) for name, pair in zip(self._numbers, numbers, strict=True)}
        self.weights = weights.contiguous()  # a dense layer's may be a view of others, with strides
        self.bias = weights.new_zeros(len(weights)) if layer.bias is None else layer.bias.detach().contiguous()

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

    def sizes(self, x: Tensor) -> list[Size]:
        """Returns the sizes on which the layer's time depends, for ``run_fastest``.

        The number of requests is not rounded, because each number has a kernel of its own.
        """
        return [f"{len(x)} requests", *x.shape[1:], len(self.weights), *self._numbers.values()]

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
        return math.prod(window_places(size, **self._numbers) for size in x.shape[2:])

    def _merged(self, x: Tensor) -> Tensor:
        from split_infer_ros.vision_ops.kernels.merged_layer import merged  # only here: Triton is optional

        return self.result_of(merged(*self.arguments(x), warps=self.warps(x), **self.options(x)))
