"""Makes calls that launch each Triton kernel with each specialisation, each dtype, and schedules of the templates.

Launchers are called with tensors on torch's ``meta`` device, which have a shape and a type but no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from split_infer_ros.search.space import Config
from split_infer_ros.vision_ops.convolution import CONVOLUTION_DTYPES
from split_infer_ros.vision_ops.fused_layers import FusedLayers
from split_infer_ros.vision_ops.kernels import (
    box_nms,
    convolution,
    merged_layer,
    prefix_sum,
    segmented_argsort,
    selection,
    windowed_convolution,
)
from split_infer_ros.vision_ops.launch_limits import GpuLimits, depthwise_rejection, shared_bytes, tiled_rejection
from split_infer_ros.vision_ops.merged_layers import MAX_REQUESTS, MergedLayer
from split_infer_ros.vision_ops.schedules import SPACES, ConvolutionTemplate

FP32, FP16 = torch.float32, torch.float16
ALL = slice(None)
CLAMP = {"low": 0.0, "high": 6.0}
# (N, C, H, W) and C'; (N, C, H, W), kernel and stride: all of them 1, all multiples of 16, and neither
POINTWISE_SIZES = (((1, 1, 1, 1), 1), ((2, 64, 16, 16), 128), ((1, 23, 3, 7), 21))
DEPTHWISE_SIZES = (((1, 1, 1, 1), 3, 1), ((2, 64, 64, 64), 3, 1), ((2, 23, 25, 27), 3, 2))
LARGE_KERNEL = ((2, 64, 64, 64), 5, 1)
# (N, C, H, W), C', kernel, stride and groups: likewise
STRIDED, DENSE, GROUPED = ((1, 1, 1, 1), 1, 1, 2, 1), ((2, 64, 16, 16), 128, 3, 1, 1), ((1, 92, 5, 7), 84, 3, 2, 4)
SIXTEENS = POINTWISE_SIZES[1]  # with which the compiler can do the most


class Launch(NamedTuple):
    """A call of a function that launches kernels.

    Attributes:
        name: a description for people.
        call: the call, which can be sent to another process.
        is_extreme: whether its schedule is at the limit of what a GPU can launch.
    """

    name: str
    call: Callable[[], object]
    is_extreme: bool = False


def launches(gpu: GpuLimits, *, in_each_specialisation: bool = True) -> Iterator[Launch]:
    """Yields launches of each kernel in each type, with the default schedules and with extreme ones.

    Args:
        gpu: the extreme schedules are those at its limits.
        in_each_specialisation: whether all whole numbers are given as 1, as multiples of 16, and as neither. Otherwise,
            each kernel is launched with one set of numbers.
    """
    numbers = ALL if in_each_specialisation else slice(1, 2)
    for kind, tf32 in ((FP32, True), (FP16, True), (FP32, False)):
        for name, schedule in extremes_of_tiles(gpu, kind, tf32):
            yield pointwise(kind, tf32, schedule, SIXTEENS, name)
    for name, schedule in list(extremes_of_tiles(gpu, FP32, tf32=True))[:2]:
        yield windowed(FP32, True, schedule, DENSE, name)
    for name, schedule in extremes_of_depthwise(LARGE_KERNEL[1]):
        yield depthwise(FP32, schedule, LARGE_KERNEL, name)
    for kind in CONVOLUTION_DTYPES:
        for sizes in POINTWISE_SIZES[numbers]:
            for tf32 in (True, False) if kind == FP32 else (True,):
                yield pointwise(kind, tf32, SPACES[ConvolutionTemplate.POINTWISE].default, sizes)
        for each in DEPTHWISE_SIZES[numbers]:
            yield depthwise(kind, SPACES[ConvolutionTemplate.DEPTHWISE].default, each)
        yield windowed(kind, True, SPACES[ConvolutionTemplate.WINDOWED].default, DENSE)
    for window, tf32 in ((STRIDED, True), (DENSE, False), (GROUPED, True))[numbers]:
        yield windowed(FP32, tf32, SPACES[ConvolutionTemplate.WINDOWED].default, window)
    for dtype in CONVOLUTION_DTYPES:
        yield from merged_layers(dtype, numbers)
    longest = ALL if in_each_specialisation else slice(-1, None)
    for each in (*prefix_sums(longest), *argsorts(longest), *selections(longest), *suppressions(numbers)):
        yield Launch(f"{each.func.__name__} {tuple(each.args[0].shape)} {each.args[0].dtype}", each)


def prefix_sums(chosen: slice = ALL) -> Iterator[partial[object]]:
    """Yields calls that sum rows of length 1, of up to one block, of two blocks, and of 16 blocks."""
    block = prefix_sum.BLOCK
    for dtype in (FP32, torch.int64):
        for length in (1, 48, 37, block + 5, 16 * block)[chosen]:
            yield partial(prefix_sum.sum_in_stages, empty(3, length, dtype=dtype))


def argsorts(chosen: slice = ALL) -> Iterator[partial[object]]:
    """Yields calls that sort one key, up to one block of keys, a few blocks, and keys that take 16 steps to merge."""
    block = segmented_argsort.BLOCK
    for count in (1, 48, 37, 3 * block + 5, 512 * block)[chosen]:
        keys = empty(count, dtype=torch.int64)
        yield partial(segmented_argsort.argsort_by_merging, keys, empty(5, dtype=torch.int64))


def selections(chosen: slice = ALL) -> Iterator[partial[object]]:
    """Yields calls that keep the best scores of rows of length 1, of up to one block, of two blocks, and of 16."""
    block = selection.BLOCK
    for length, count in ((1, 1), (48, 48), (37, 37), (block + 5, 30), (16 * block, 1))[chosen]:
        yield partial(selection.keep_best, empty(3, length), count, 0.5)


def suppressions(chosen: slice = ALL) -> Iterator[partial[object]]:
    """Yields calls that suppress boxes with labels and without. Numbers are 1, multiples of 16, or neither."""
    for boxes, classes, max_detections in ((1, 1, 1), (48, 80, 112), (37, 20, 100))[chosen]:
        for labels in (None, empty(2, boxes, dtype=torch.int64)):
            yield partial(
                box_nms.suppress_sorted,
                empty(2, boxes, 4),
                empty(2 * boxes * classes, dtype=torch.int32),
                empty(2 * boxes * classes, dtype=torch.int64),
                empty(3, dtype=torch.int64),
                labels,
                classes=1 if labels is not None else classes,
                max_detections=max_detections,
                iou_threshold=0.5,
            )


def pointwise(
    dtype: torch.dtype, tf32: bool, schedule: Config, sizes: tuple[tuple[int, ...], int], extreme: str = ""
) -> Launch:
    """Returns the launch of a 1x1 convolution.

    Args:
        dtype: the dtype of features and weights.
        tf32: whether factors of float32 may be rounded to TF32.
        schedule: the schedule of the template.
        sizes: the shape of the features, (N, C, H, W), and the number of output channels.
        extreme: the name of the limit that the schedule reaches; empty if it reaches none.
    """
    shape, out_channels = sizes
    call = partial(
        convolution.pointwise,
        empty(*shape, dtype=dtype),
        empty(out_channels, shape[1], dtype=dtype),
        empty(out_channels, dtype=dtype),
        **CLAMP,
        tf32=tf32,
        **schedule,  # type: ignore[arg-type]
    )
    return Launch(f"pointwise {dtype} tf32 {tf32} {sizes} {schedule} {extreme}", call, bool(extreme))


def windowed(
    dtype: torch.dtype,
    tf32: bool,
    schedule: Config,
    sizes: tuple[tuple[int, ...], int, int, int, int],
    extreme: str = "",
) -> Launch:
    """Returns the launch of a convolution with a window. ``sizes`` ends with kernel, stride and groups."""
    shape, out_channels, kernel, stride, groups = sizes
    call = partial(
        windowed_convolution.windowed,
        empty(*shape, dtype=dtype),
        empty(out_channels, kernel * kernel * shape[1] // groups, dtype=dtype),
        empty(out_channels, dtype=dtype),
        **CLAMP,
        tf32=tf32,
        kernel=kernel,
        stride=stride,
        padding=kernel // 2,
        dilation=1,
        groups=groups,
        **schedule,  # type: ignore[arg-type]
    )
    return Launch(f"windowed {dtype} tf32 {tf32} {sizes} {schedule} {extreme}", call, bool(extreme))


def merged_layers(dtype: torch.dtype, chosen: slice = ALL) -> Iterator[Launch]:
    """Yields merged and fused launches of a window of requests. Sizes are 1, multiples of 16, or neither."""
    with torch.device("meta"):
        layers = [
            (nn.Conv2d(1, 1, 1, dtype=dtype), empty(1, 1, 1, 1, dtype=dtype)),
            (nn.Conv2d(64, 128, 3, 1, 1, dtype=dtype), empty(MAX_REQUESTS, 64, 16, 16, dtype=dtype)),
            (nn.Conv2d(23, 21, 3, 2, 1, dtype=dtype), empty(2, 23, 25, 27, dtype=dtype)),
            (nn.Linear(96, 1008, dtype=dtype), empty(2, 96, dtype=dtype)),
        ]
    made = [(MergedLayer(layer, **CLAMP), x) for layer, x in layers][chosen]
    for layer, x in made:
        call = partial(merged_layer.merged, *layer.arguments(x), warps=layer.warps(x), **layer.options(x))
        yield Launch(f"merged {layer.sizes(x)} {dtype}", call)
    for (one, x), (two, y) in zip(made, [*made[1:], made[0]], strict=True):
        tensors, options = (*one.arguments(x), *two.arguments(y)), FusedLayers(one, two).options(x, y)
        yield Launch(f"fused {one.sizes(x)} {two.sizes(y)} {dtype}", partial(merged_layer.fused, *tensors, **options))


def depthwise(
    dtype: torch.dtype, schedule: Config, sizes: tuple[tuple[int, ...], int, int], extreme: str = ""
) -> Launch:
    """Returns the launch of a depthwise convolution. ``sizes`` has the shape, the kernel's side and the stride."""
    shape, kernel, stride = sizes
    channels = shape[1]
    call = partial(
        convolution.depthwise,
        empty(*shape, dtype=dtype),
        empty(kernel * kernel, channels, dtype=dtype),
        empty(channels, dtype=dtype),
        **CLAMP,
        kernel=kernel,
        stride=stride,
        padding=kernel // 2,
        **schedule,  # type: ignore[arg-type]
    )
    return Launch(f"depthwise {dtype} {sizes} {schedule} {extreme}", call, bool(extreme))


def extremes_of_tiles(gpu: GpuLimits, dtype: torch.dtype, tf32: bool) -> Iterator[tuple[str, Config]]:
    """Yields names and accepted schedules: with the most shared memory, the most sums per thread, and the fewest."""
    space = replace(
        SPACES[ConvolutionTemplate.POINTWISE],
        rule=lambda schedule: tiled_rejection(schedule, gpu, dtype, tf32=tf32),
    )
    has_tensor_cores = gpu.has_tensor_cores_for(dtype, tf32=tf32)

    def shared(schedule: Config) -> int:
        return shared_bytes(schedule, gpu.target, dtype.itemsize, on_tensor_cores=has_tensor_cores)

    def sums(schedule: Config) -> float:
        return int(schedule["pixels"]) * int(schedule["channels"]) / int(schedule["warps"])

    if has_tensor_cores:  # without them, the schedule of the most memory holds the most sums as well
        yield "most shared memory", max(space, key=lambda schedule: (shared(schedule), sums(schedule)))
    yield "most sums", max(space, key=lambda schedule: (sums(schedule), shared(schedule)))
    yield "least", min(space, key=lambda schedule: (sums(schedule), shared(schedule)))


def extremes_of_depthwise(kernel: int) -> Iterator[tuple[str, Config]]:
    """Yields names and accepted schedules: with the most sums per thread, with a loop or without, and the fewest."""
    space = replace(SPACES[ConvolutionTemplate.DEPTHWISE], rule=lambda schedule: depthwise_rejection(schedule, kernel))

    def sums(schedule: Config) -> float:
        return int(schedule["rows"]) * int(schedule["columns"]) * int(schedule["channels"]) / int(schedule["warps"])

    yield "most sums", max(space, key=sums)
    yield "most sums without a loop", max(space, key=lambda schedule: (schedule["unrolled"], sums(schedule)))
    yield "fewest sums", min(space, key=sums)


def empty(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    """Returns a tensor without memory, on torch's ``meta`` device."""
    return torch.empty(shape, dtype=dtype, device="meta")
