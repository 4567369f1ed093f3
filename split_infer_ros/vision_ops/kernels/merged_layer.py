"""Merged and fused kernels of convolutions and dense layers (paper 001, §II-B, Algorithms 1 and 2), channels last.

A merged kernel computes one layer for several requests. A program computes the same places of the result for each
request: it loads a tile of weights once, and then takes the maps of one request after the other. The requests of a
dense layer lie in one map, so that one tile has all of them.

A fused kernel is one launch that computes two layers of different models. Its programs are shared out between them in
turns, so that programs of both layers are on the GPU at the same time. Programs that remain are those of the layer that
has more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from split_infer_ros.vision_ops.kernels.convolution import clamped
from split_infer_ros.vision_ops.launch_limits import KernelResources
from split_infer_ros.vision_ops.window import window_places


class LayerArguments(NamedTuple):
    """What a kernel is told of a layer. Names in capitals are constants, for which the kernel is compiled."""

    maps: Tensor
    weights: Tensor
    bias: Tensor
    result: Tensor
    height: int
    width: int
    out_rows: int
    out_columns: int
    in_channels: int
    out_channels: int
    low: float
    high: float
    REQUESTS: tl.constexpr
    KERNEL: tl.constexpr
    STRIDE: tl.constexpr
    PADDING: tl.constexpr
    DILATION: tl.constexpr
    PIXELS: tl.constexpr
    CHANNELS: tl.constexpr
    DEPTH: tl.constexpr
    PRECISION: tl.constexpr

    @property
    def programs(self) -> int:
        """How many programs compute the layer: one for each tile of the result of one request."""
        pixels = triton.cdiv(self.out_rows * self.out_columns, self.PIXELS.value)
        return int(pixels * triton.cdiv(self.out_channels, self.CHANNELS.value))


def merged(maps: Tensor, weights: Tensor, bias: Tensor, *, warps: int, **options: Any) -> Tensor:
    """Computes a convolution or a dense layer for several requests by one launch (Algorithm 1).

    Args:
        maps: (N, C, H, W), an image of each of N requests; copied to channels last if they are not. For a dense layer
            (1, C, N, 1), with a row of each request.
        weights: (C', kernel * kernel * C), of the same type. The places of the window come row by row, each with all
            channels.
        bias: (C',).
        warps: warps that share a program.
        options: the other keywords of ``layer_arguments``.

    Returns:
        (N, C', H', W'), channels last.
    """
    layer = layer_arguments(maps, weights, bias, **options)
    _merged[layer.programs,](layer, enable_fp_fusion=True, num_warps=warps)
    return layer.result


def fused(
    maps: Tensor,
    weights: Tensor,
    bias: Tensor,
    other_maps: Tensor,
    other_weights: Tensor,
    other_bias: Tensor,
    *,
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    warps: int,
) -> tuple[Tensor, Tensor]:
    """Computes two layers of different models by one launch (Algorithm 2), each for its requests.

    Args:
        maps, weights, bias: the first layer's, as for ``merged``.
        other_maps, other_weights, other_bias: the second layer's.
        first, second: the keywords of ``layer_arguments`` for each layer.
        warps: warps that share a program, of both layers.

    Returns:
        The results of both layers, as ``merged`` gives them.
    """
    one = layer_arguments(maps, weights, bias, **first)
    two = layer_arguments(other_maps, other_weights, other_bias, **second)
    programs = one.programs, two.programs
    _fused[sum(programs),](one, two, *programs, enable_fp_fusion=True, num_warps=warps)
    return one.result, two.result


def fused_resources(
    tensors: Sequence[Tensor], *, first: Mapping[str, Any], second: Mapping[str, Any], warps: int
) -> KernelResources:
    """Compiles the kernel that ``fused`` launches with these arguments on a GPU, and returns what its programs take."""
    one, two = layer_arguments(*tensors[:3], **first), layer_arguments(*tensors[3:], **second)
    options = {"enable_fp_fusion": True, "num_warps": warps}
    kernel = _fused.warmup(one, two, one.programs, two.programs, grid=(1,), **options)
    kernel._init_handles()  # loads it, because the driver knows the registers
    return KernelResources(kernel.n_regs, kernel.metadata.shared, warps)


def layer_arguments(
    maps: Tensor,
    weights: Tensor,
    bias: Tensor,
    *,
    low: float,
    high: float,
    tf32: bool,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
    pixels: int,
    channels: int,
    depth: int,
) -> LayerArguments:
    """Makes what a kernel is told of a layer, with memory for the result.

    Args:
        maps, weights, bias: as for ``merged``.
        low, high: the limits to which results are clamped.
        tf32: whether factors of float32 may be rounded to 10 bits.
        kernel, stride, padding, dilation: the convolution's numbers, the same for rows and columns.
        pixels, channels: the tile of one request's result that a program computes; powers of two, at least 16.
        depth: channels of ``maps`` that a program takes at a time; a power of two, at least 16.
    """
    requests, in_channels, height, width = maps.shape
    window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    out_rows, out_columns = (window_places(size, **window) for size in (height, width))
    shape = requests, len(weights), out_rows, out_columns
    constants = requests, kernel, stride, padding, dilation, pixels, channels, depth, "tf32" if tf32 else "ieee"
    return LayerArguments(
        maps.contiguous(memory_format=torch.channels_last),
        weights,
        bias,
        torch.empty(shape, dtype=maps.dtype, device=maps.device, memory_format=torch.channels_last),
        *(height, width, out_rows, out_columns, in_channels, len(weights)),
        *(low, high),
        *map(tl.constexpr, constants),
    )


@triton.jit
def _merged(layer):
    _compute_tile(layer, tl.program_id(0))


@triton.jit
def _fused(first, second, first_programs, second_programs):
    program = tl.program_id(0)
    shared = 2 * tl.minimum(first_programs, second_programs)  # programs of both layers in turns
    in_turns = program < shared
    place = tl.where(in_turns, program // 2, program - shared // 2)
    if tl.where(in_turns, program % 2 == 0, first_programs > second_programs):
        _compute_tile(first, place)
    else:
        _compute_tile(second, place)


@triton.jit
def _compute_tile(layer, place):
    count = layer.out_rows * layer.out_columns
    tiles = tl.cdiv(count, layer.PIXELS)
    pixel = place % tiles * layer.PIXELS + tl.arange(0, layer.PIXELS)
    channel = place // tiles * layer.CHANNELS + tl.arange(0, layer.CHANNELS)
    beyond = -(layer.height + layer.DILATION * layer.KERNEL)  # from this row on, no place of the window is in the map
    first_y = tl.where(pixel < count, pixel // layer.out_columns * layer.STRIDE - layer.PADDING, beyond)
    first_x = pixel % layer.out_columns * layer.STRIDE - layer.PADDING
    first = (first_y * layer.width + first_x) * layer.in_channels
    taps = layer.KERNEL * layer.KERNEL
    filters = channel * (layer.in_channels * taps)
    totals = ()  # a sum for each request; Triton unpacks no tuples
    for _ in tl.static_range(layer.REQUESTS):
        totals = totals + (tl.zeros((layer.PIXELS, layer.CHANNELS), tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
    for turn in tl.range(0, tl.cdiv(layer.in_channels, layer.DEPTH) * taps):
        tap = turn % taps
        channel_in = turn // taps * layer.DEPTH + tl.arange(0, layer.DEPTH)
        down, right = tap // layer.KERNEL * layer.DILATION, tap % layer.KERNEL * layer.DILATION
        y, x = first_y + down, first_x + right
        inside = (y >= 0) & (y < layer.height) & (x >= 0) & (x < layer.width)
        source = first[:, None] + ((down * layer.width + right) * layer.in_channels + channel_in)[None, :]
        has_channel = channel_in < layer.in_channels
        factors = tl.load(  # once for all requests
            layer.weights + (filters[None, :] + (tap * layer.in_channels + channel_in)[:, None]),
            mask=(channel < layer.out_channels)[None, :] & has_channel[:, None],
            other=0.0,
        )
        sums = ()
        for request in tl.static_range(layer.REQUESTS):
            image = tl.full((), request, tl.int64) * layer.height * layer.width * layer.in_channels
            values = tl.load(layer.maps + image + source, mask=inside[:, None] & has_channel[None, :], other=0.0)
            product = tl.dot(values, factors, totals[request], input_precision=layer.PRECISION)
            sums = sums + (product,)  # type: ignore[assignment]  # noqa: RUF005
        totals = sums
    bias = tl.load(layer.bias + channel, mask=channel < layer.out_channels, other=0.0).to(tl.float32)
    within = (pixel < count)[:, None] & (channel < layer.out_channels)[None, :]
    target = pixel[:, None] * layer.out_channels + channel[None, :]
    for request in tl.static_range(layer.REQUESTS):
        image = tl.full((), request, tl.int64) * count * layer.out_channels
        result = clamped(totals[request] + bias[None, :], layer.low, layer.high)
        tl.store(layer.result + image + target, result, mask=within)
