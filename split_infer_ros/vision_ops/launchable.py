"""Which schedules a GPU can launch, and its compiler is done with in seconds: told by formulas, without compiling.

The formulas were made from a sweep of all schedules, docs/results/triton_pointwise.csv and triton_depthwise.csv, and a
test holds them against it. What they admit took at most 5 s to compile there; what they leave out, up to minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from split_infer_ros.search.space import Config

WARP = 32
MOST_ACCUMULATORS = 128  # of a thread: it has 255 registers
MOST_PRODUCTS = 4096  # of a 1x1 convolution that a thread's code writes out, where there are no tensor cores for it
MOST_TAPPED = 1024  # of a depthwise convolution: each tap computes places and masks as well
TURING, AMPERE, HOPPER = 75, 80, 90
WIDE_ROWS, WIDE_WARPS = 64, 4  # the tile that Hopper's tensor cores take at once, and who asks them together


@dataclass(frozen=True, slots=True)
class Gpu:
    """What of a GPU limits a kernel.

    Attributes:
        target: 90 for sm_90.
        shared_bytes: of memory that the threads of a block can share.
    """

    target: int
    shared_bytes: int

    def has_tensor_cores_for(self, dtype: torch.dtype, tf32: bool) -> bool:
        """Whether a 1x1 convolution of that type runs on them; of float32 only where ``tf32`` allows it to round."""
        if dtype == torch.float16:
            return self.target >= TURING
        return self.target >= AMPERE and (dtype == torch.bfloat16 or tf32)


def pointwise_objection(schedule: Config, gpu: Gpu, dtype: torch.dtype, tf32: bool) -> str | None:
    """Why a schedule of the 1x1 template is left out, in a sentence; None if it can be launched.

    Args:
        schedule: one of the template's.
        gpu: on which it would run.
        dtype: of the maps and weights.
        tf32: whether products of float32 may be rounded first.
    """
    pixels, channels, depth, unrolled, warps = (int(schedule[name]) for name in _POINTWISE)
    by_tensor_cores = gpu.has_tensor_cores_for(dtype, tf32)
    shared = shared_bytes(schedule, gpu.target, dtype.itemsize, by_tensor_cores)
    if shared > gpu.shared_bytes:
        return f"It takes {shared:,} bytes of shared memory; a block of this GPU has {gpu.shared_bytes:,}."
    accumulators = pixels * channels / (WARP * warps)
    products = 0 if by_tensor_cores else accumulators * depth * unrolled
    return _objection_of_size(accumulators, products, MOST_PRODUCTS)


def depthwise_objection(schedule: Config, kernel: int) -> str | None:
    """Why a schedule of the depthwise template is left out, in a sentence; None if it can be launched.

    Args:
        schedule: one of the template's.
        kernel: rows of the convolution's kernel, which is square.
    """
    rows, columns, channels, unrolled, warps = (int(schedule[name]) for name in _DEPTHWISE)
    accumulators = rows * columns * channels / (WARP * warps)
    return _objection_of_size(accumulators, accumulators * kernel * kernel * unrolled, MOST_TAPPED)


def shared_bytes(schedule: Config, target: int, itemsize: int, by_tensor_cores: bool) -> int:
    """Shared memory that a block of the 1x1 template takes, as the compiler lays it out.

    From Ampere on, tiles of maps and weights are copied while those before them are multiplied. So each turn of the
    loop has its own, several times.
    """
    pixels, channels, depth, unrolled, warps = (int(schedule[name]) for name in _POINTWISE)
    wide = by_tensor_cores and target >= HOPPER and pixels >= WIDE_ROWS and warps >= WIDE_WARPS
    tiles = 1 if target < AMPERE else (3 if wide else 2) * unrolled
    return tiles * (pixels + channels) * depth * itemsize


_POINTWISE = ("pixels", "channels", "depth", "unrolled", "warps")
_DEPTHWISE = ("rows", "columns", "channels", "unrolled", "warps")


def _objection_of_size(accumulators: float, products: float, most_products: int) -> str | None:
    if accumulators > MOST_ACCUMULATORS:
        return f"A thread holds {accumulators:g} sums; more than {MOST_ACCUMULATORS} do not fit into its registers."
    if products > most_products:
        return f"A thread's code has {products:g} products; with more than {most_products} it compiles for minutes."
    return None
