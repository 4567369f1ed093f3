"""A template of convolutions with any square window, stride, dilation and number of groups, channels last.

This is paper 004, §3.2.2. One loop runs over the places of the window and the input channels of a group. Each turn
multiplies a tile of pixels, taken at one place of the window, with a tile of weights. So a strided 1x1 convolution is a
window of one place, and a dense one is one group.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from split_infer_ros.vision_ops.kernels.convolution import clamped, launched
from split_infer_ros.vision_ops.window import window_places


def windowed(
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
    groups: int,
    pixels: int,
    channels: int,
    depth: int,
    unrolled: int,
    warps: int,
) -> Tensor:
    """Computes a convolution with a square window, from C to C' channels.

    Args:
        maps: (N, C, H, W); copied to channels last if they are not.
        weights: (C', kernel * kernel * C / groups), of the same type. The places of the window come row by row, each
            with all channels of the group.
        bias: (C',).
        low, high: the limits to which results are clamped.
        tf32: whether factors of float32 may be rounded to 10 bits, which torch's setting for cuDNN decides.
        kernel, stride, padding, dilation: the convolution's numbers, the same for rows and columns.
        groups: a divisor of C and C'.
        pixels, channels: the tile of the result that a program computes; powers of two, at least 16.
        depth: channels of ``maps`` that a program takes at a time; a power of two, at least 16.
        unrolled: turns of the loop that are unrolled.
        warps: warps that share a program.

    Returns:
        (N, C', H', W'), channels last.
    """
    images, in_channels, height, width = maps.shape
    out_channels, window = len(weights), {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    out_rows, out_columns = (window_places(size, **window) for size in (height, width))
    count, group_out = images * out_rows * out_columns, out_channels // groups
    return launched(
        _windowed[triton.cdiv(count, pixels), triton.cdiv(group_out, channels), groups],
        (maps, weights, bias),
        (images, out_channels, out_rows, out_columns),
        (count, height, width, out_rows, out_columns, in_channels // groups, group_out, low, high),
        KERNEL=kernel,
        STRIDE=stride,
        PADDING=padding,
        DILATION=dilation,
        PIXELS=pixels,
        CHANNELS=channels,
        DEPTH=depth,
        UNROLLED=unrolled,
        PRECISION="tf32" if tf32 else "ieee",
        num_warps=warps,
    )


@triton.jit
def _windowed(
    maps,
    weights,
    bias,
    result,
    count,
    height,
    width,
    out_rows,
    out_columns,
    group_in,
    group_out,
    low,
    high,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    DILATION: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr,
    UNROLLED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    group = tl.program_id(2)
    in_channels = tl.num_programs(2) * group_in
    out_channels = tl.num_programs(2) * group_out
    beyond = -(height + DILATION * KERNEL)  # a row from which no place of the window lies in the map
    first_y = tl.where(pixel < count, pixel // out_columns % out_rows * STRIDE - PADDING, beyond)
    first_x = pixel % out_columns * STRIDE - PADDING
    image, first_image = pixel // (out_rows * out_columns), tl.program_id(0) * PIXELS // (out_rows * out_columns)
    source = maps + first_image.to(tl.int64) * height * width * in_channels + group * group_in
    first = (((image - first_image) * height + first_y) * width + first_x) * in_channels  # places from there
    filters = (group * group_out + channel) * (KERNEL * KERNEL * group_in)
    chunks = tl.cdiv(group_in, DEPTH)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for turn in tl.range(0, KERNEL * KERNEL * chunks, loop_unroll_factor=UNROLLED):
        tap = turn % (KERNEL * KERNEL)
        channel_in = turn // (KERNEL * KERNEL) * DEPTH + tl.arange(0, DEPTH)
        down, right = tap // KERNEL * DILATION, tap % KERNEL * DILATION
        y, x = first_y + down, first_x + right
        inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        values = tl.load(
            source + (first[:, None] + ((down * width + right) * in_channels + channel_in)[None, :]),
            mask=inside[:, None] & (channel_in < group_in)[None, :],
            other=0.0,
        )
        factors = tl.load(
            weights + (filters[None, :] + (tap * group_in + channel_in)[:, None]),
            mask=(channel < group_out)[None, :] & (channel_in < group_in)[:, None],
            other=0.0,
        )
        total = tl.dot(values, factors, total, input_precision=PRECISION)
    own = group * group_out + channel
    total += tl.load(bias + own, mask=channel < group_out, other=0.0).to(tl.float32)[None, :]
    within = (pixel < count)[:, None] & (channel < group_out)[None, :]
    target = result + pixel.to(tl.int64)[:, None] * out_channels + own[None, :]
    tl.store(target, clamped(total, low, high), mask=within)
