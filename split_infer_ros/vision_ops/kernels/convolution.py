"""Templates of 1x1 and depthwise convolutions, channels last, which clamp their results in the same pass.

This is paper 004, §3.2.2. The **schedule** of a template decides what the template leaves open. It divides the channels
and rows of the map into tiles, one for each program. It says how many turns of a loop are unrolled, and how many warps
share a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from split_infer_ros.vision_ops.window import window_places


def pointwise(
    maps: Tensor,
    weights: Tensor,
    bias: Tensor,
    *,
    low: float,
    high: float,
    tf32: bool,
    pixels: int,
    channels: int,
    depth: int,
    unrolled: int,
    warps: int,
) -> Tensor:
    """Computes a 1x1 convolution of stride 1, from C to C' channels.

    Args:
        maps: (N, C, H, W); copied to channels last if they are not.
        weights: (C', C), of the same type.
        bias: (C',).
        low, high: the limits to which results are clamped.
        tf32: whether factors of float32 may be rounded to 10 bits, which torch's setting for cuDNN decides.
        pixels, channels: the tile of the result that a program computes; powers of two, at least 16.
        depth: channels of ``maps`` that a program takes at a time; a power of two, at least 16.
        unrolled: turns of the loop over ``maps``' channels that are unrolled.
        warps: warps that share a program.

    Returns:
        (N, C', H, W), channels last.
    """
    images, in_channels, height, width = maps.shape
    out_channels, count = len(weights), images * height * width
    return launched(
        _pointwise[triton.cdiv(count, pixels), triton.cdiv(out_channels, channels)],
        (maps, weights, bias),
        (images, out_channels, height, width),
        (count, in_channels, out_channels, low, high),
        PIXELS=pixels,
        CHANNELS=channels,
        DEPTH=depth,
        UNROLLED=unrolled,
        PRECISION="tf32" if tf32 else "ieee",
        num_warps=warps,
    )


def depthwise(
    maps: Tensor,
    weights: Tensor,
    bias: Tensor,
    *,
    low: float,
    high: float,
    kernel: int,
    stride: int,
    padding: int,
    rows: int,
    columns: int,
    channels: int,
    unrolled: bool,
    warps: int,
) -> Tensor:
    """Computes a convolution of each of C channels by itself.

    Args:
        maps: (N, C, H, W); copied to channels last if they are not.
        weights: (kernel * kernel, C), of the same type.
        bias: (C,).
        low, high: the limits to which results are clamped.
        kernel, stride, padding: the convolution's numbers, the same for rows and columns.
        rows, columns, channels: the tile of the result that a program computes; powers of two.
        unrolled: whether the loop over the kernel's taps is unrolled.
        warps: warps that share a program.

    Returns:
        (N, C, H', W'), channels last.
    """
    images, depth, height, width = maps.shape
    out_rows, out_columns = (
        window_places(size, kernel=kernel, stride=stride, padding=padding) for size in (height, width)
    )
    splits = triton.cdiv(out_rows, rows)
    return launched(
        _depthwise[images * splits, triton.cdiv(out_columns, columns), triton.cdiv(depth, channels)],
        (maps, weights, bias),
        (images, depth, out_rows, out_columns),
        (height, width, out_rows, out_columns, depth, splits, low, high),
        KERNEL=kernel,
        STRIDE=stride,
        PADDING=padding,
        ROWS=rows,
        COLUMNS=columns,
        CHANNELS=channels,
        UNROLLED=unrolled,
        num_warps=warps,
    )


def launched(
    kernel: Callable[..., object],
    inputs: tuple[Tensor, Tensor, Tensor],
    shape: tuple[int, ...],
    numbers: Sequence[float],
    **options: Any,
) -> Tensor:
    """Launches the kernel of a template and returns its result, in channels last.

    Args:
        kernel: the kernel with its grid.
        inputs: the maps, which are copied to channels last if they are not, the weights and the bias.
        shape: (N, C', H', W'), of the result.
        numbers: the kernel's arguments behind the result.
        options: its constants, and ``num_warps``.
    """
    maps, weights, bias = inputs
    result = torch.empty(shape, dtype=maps.dtype, device=maps.device, memory_format=torch.channels_last)
    maps = maps.contiguous(memory_format=torch.channels_last)
    kernel(maps, weights, bias, result, *numbers, enable_fp_fusion=True, **options)
    return result


@triton.jit
def _pointwise(
    maps,
    weights,
    bias,
    result,
    count,
    in_channels,
    out_channels,
    low,
    high,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
    UNROLLED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for start in tl.range(0, in_channels, DEPTH, loop_unroll_factor=UNROLLED):
        channel_in = start + tl.arange(0, DEPTH)
        left = tl.load(
            maps + pixel[:, None] * in_channels + channel_in[None, :],
            mask=(pixel < count)[:, None] & (channel_in < in_channels)[None, :],
            other=0.0,
        )
        right = tl.load(
            weights + channel[None, :] * in_channels + channel_in[:, None],
            mask=(channel < out_channels)[None, :] & (channel_in < in_channels)[:, None],
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision=PRECISION)
    total += tl.load(bias + channel, mask=channel < out_channels, other=0.0).to(tl.float32)[None, :]
    inside = (pixel < count)[:, None] & (channel < out_channels)[None, :]
    tl.store(result + pixel[:, None] * out_channels + channel[None, :], clamped(total, low, high), mask=inside)


@triton.jit
def _depthwise(
    maps,
    weights,
    bias,
    result,
    height,
    width,
    out_rows,
    out_columns,
    depth,
    splits,
    low,
    high,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    UNROLLED: tl.constexpr,
):
    image = (tl.program_id(0) // splits).to(tl.int64)
    place = tl.arange(0, ROWS * COLUMNS)
    row = tl.program_id(0) % splits * ROWS + place // COLUMNS
    column = tl.program_id(1) * COLUMNS + place % COLUMNS
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros((ROWS * COLUMNS, CHANNELS), tl.float32)
    source = maps + image * height * width * depth
    if UNROLLED:
        for tap in tl.static_range(KERNEL * KERNEL):
            y, x = row * STRIDE - PADDING + tap // KERNEL, column * STRIDE - PADDING + tap % KERNEL
            total += _tap(source, weights, y, x, channel, tap, height, width, depth)
    else:
        for tap in tl.range(KERNEL * KERNEL):
            y, x = row * STRIDE - PADDING + tap // KERNEL, column * STRIDE - PADDING + tap % KERNEL
            total += _tap(source, weights, y, x, channel, tap, height, width, depth)
    total += tl.load(bias + channel, mask=channel < depth, other=0.0).to(tl.float32)[None, :]
    inside = ((row < out_rows) & (column < out_columns))[:, None] & (channel < depth)[None, :]
    target = ((image * out_rows + row) * out_columns + column)[:, None] * depth + channel[None, :]
    tl.store(result + target, clamped(total, low, high), mask=inside)


@triton.jit
def _tap(source, weights, y, x, channel, tap, height, width, depth):
    inside = ((y >= 0) & (y < height) & (x >= 0) & (x < width))[:, None] & (channel < depth)[None, :]
    value = tl.load(source + (y * width + x)[:, None] * depth + channel[None, :], mask=inside, other=0.0)
    weight = tl.load(weights + tap * depth + channel, mask=channel < depth, other=0.0)
    return value.to(tl.float32) * weight.to(tl.float32)[None, :]


@triton.jit
def clamped(total, low, high):
    """Returns numbers limited to the range from ``low`` to ``high``. NaN stays NaN."""
    above = tl.maximum(total, low, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(above, high, propagate_nan=tl.PropagateNan.ALL)
