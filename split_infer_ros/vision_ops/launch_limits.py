"""Formulas that find, without compiling, the schedules that a GPU can launch and that compile within seconds.

The formulas were made from sweeps of the templates' schedules, docs/results/triton_*.csv. A test compares them with the
sweeps. In the sweeps, every accepted schedule compiled within 5 s. Rejected ones took up to minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from split_infer_ros.search.space import Config

THREADS_PER_WARP = 32
WARP_REGISTERS_UNIT = 256  # a warp gets registers in steps of so many
MAX_ACCUMULATORS = 128  # sums that a thread can hold in its 255 registers
MAX_TILE_PRODUCTS = 4096  # products in a thread's code for multiplied tiles, if no tensor core computes them
MAX_DEPTHWISE_PRODUCTS = 1024  # fewer, because each tap of the kernel computes addresses and masks as well
TURING, AMPERE, HOPPER = 75, 80, 90
HOPPER_TILE_ROWS, HOPPER_TILE_WARPS = 64, 4  # rows that Hopper's tensor cores take at once, and warps that share them


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """What limits the kernels of a GPU.

    Attributes:
        target: the compute capability, 90 for sm_90.
        shared_bytes: shared memory that a block of threads can have.
    """

    target: int
    shared_bytes: int

    def has_tensor_cores_for(self, dtype: torch.dtype, *, tf32: bool) -> bool:
        """Returns whether tensor cores multiply tiles of this type; float32 only if ``tf32`` lets it be rounded."""
        if dtype == torch.float16:
            return self.target >= TURING
        return self.target >= AMPERE and (dtype == torch.bfloat16 or tf32)


@cache
def gpu_limits(device: torch.device) -> GpuLimits:
    """Returns the limits of a GPU, as Triton reports them. Triton launches no kernel that takes more shared memory.

    Args:
        device: a GPU, with its index.
    """
    from triton.compiler.compiler import max_shared_mem  # only here: Triton is optional

    major, minor = torch.cuda.get_device_capability(device)
    return GpuLimits(10 * major + minor, max_shared_mem(device.index))


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What a program of a compiled kernel takes, as the compiler reports it.

    Attributes:
        registers: registers of a thread.
        shared_bytes: shared memory of the program.
        warps: warps that share the program.
    """

    registers: int
    shared_bytes: int
    warps: int


@dataclass(frozen=True, slots=True)
class MultiprocessorLimits:
    """What the programs that are resident on one multiprocessor of a GPU share.

    Attributes:
        shared_bytes: their shared memory.
        registers: their registers, of which every GPU since Kepler has as many.
        reserved_bytes: shared memory of each program that the system takes; none before Ampere.
    """

    shared_bytes: int
    registers: int = 64 << 10
    reserved_bytes: int = 1 << 10


@cache
def multiprocessor_limits(device: torch.device) -> MultiprocessorLimits:
    """Returns the limits of a GPU's multiprocessors.

    Args:
        device: a GPU, with its index.
    """
    found = torch.cuda.get_device_properties(device)
    reserved_bytes = 0 if 10 * found.major + found.minor < AMPERE else 1 << 10
    return MultiprocessorLimits(found.shared_memory_per_multiprocessor, reserved_bytes=reserved_bytes)


def residency_rejection(kernel: KernelResources, gpu: MultiprocessorLimits, programs: int = 2) -> str | None:
    """Returns why programs of a kernel cannot share a multiprocessor, as a sentence; None if they can.

    Args:
        kernel: the compiled kernel. A fused one has what the larger of its two layers takes.
        gpu: the multiprocessor's limits.
        programs: how many programs are to be resident.
    """
    of_warp = -(-kernel.registers * THREADS_PER_WARP // WARP_REGISTERS_UNIT) * WARP_REGISTERS_UNIT
    registers = programs * kernel.warps * of_warp
    if registers > gpu.registers:
        return f"{programs} programs take {registers:,} registers; a multiprocessor has {gpu.registers:,}."
    shared = programs * (kernel.shared_bytes + gpu.reserved_bytes)
    if shared > gpu.shared_bytes:
        return f"{programs} programs take {shared:,} bytes of shared memory; a multiprocessor has {gpu.shared_bytes:,}."
    return None


def tiled_rejection(schedule: Config, gpu: GpuLimits, dtype: torch.dtype, *, tf32: bool) -> str | None:
    """Returns why a schedule of tiles is rejected, as a sentence; None if it can be launched and compiles soon.

    Args:
        schedule: a schedule of the 1x1 template or of the windowed one. Both multiply tiles.
        gpu: the GPU on which it would run.
        dtype: the type of the maps and weights.
        tf32: whether products of float32 may be rounded first.
    """
    pixels, channels, depth, unrolled, warps = (int(schedule[name]) for name in _TILED)
    on_tensor_cores = gpu.has_tensor_cores_for(dtype, tf32=tf32)
    shared = shared_bytes(schedule, gpu.target, dtype.itemsize, on_tensor_cores=on_tensor_cores)
    if shared > gpu.shared_bytes:
        return f"It takes {shared:,} bytes of shared memory; a block of this GPU has {gpu.shared_bytes:,}."
    accumulators = pixels * channels / (THREADS_PER_WARP * warps)
    products = 0 if on_tensor_cores else accumulators * depth * unrolled
    return _rejection_by_size(accumulators, products, MAX_TILE_PRODUCTS)


def depthwise_rejection(schedule: Config, kernel: int) -> str | None:
    """Returns why a schedule is rejected, as a sentence; None if it can be launched and compiles soon.

    Args:
        schedule: a schedule of the depthwise template.
        kernel: rows of the convolution's square kernel.
    """
    rows, columns, channels, unrolled, warps = (int(schedule[name]) for name in _DEPTHWISE)
    accumulators = rows * columns * channels / (THREADS_PER_WARP * warps)
    return _rejection_by_size(accumulators, accumulators * kernel * kernel * unrolled, MAX_DEPTHWISE_PRODUCTS)


def shared_bytes(schedule: Config, target: int, itemsize: int, *, on_tensor_cores: bool) -> int:
    """Returns the bytes of shared memory that a block needs for a schedule of tiles, as the compiler lays it out.

    From Ampere on, the next tiles of maps and weights are copied while the current ones are multiplied. So each
    unrolled turn of the loop holds two sets of tiles, or three if they fill Hopper's tensor cores.

    Args:
        schedule: a schedule of the 1x1 template or of the windowed one.
        target: the GPU's compute capability, 90 for sm_90.
        itemsize: bytes of an element of the maps and weights.
        on_tensor_cores: whether tensor cores multiply the tiles.
    """
    pixels, channels, depth, unrolled, warps = (int(schedule[name]) for name in _TILED)
    fills_hopper_tile = target >= HOPPER and pixels >= HOPPER_TILE_ROWS and warps >= HOPPER_TILE_WARPS
    tiles_per_turn = 3 if on_tensor_cores and fills_hopper_tile else 2
    tiles = 1 if target < AMPERE else tiles_per_turn * unrolled
    return tiles * (pixels + channels) * depth * itemsize


_TILED = ("pixels", "channels", "depth", "unrolled", "warps")
_DEPTHWISE = ("rows", "columns", "channels", "unrolled", "warps")


def _rejection_by_size(accumulators: float, products: float, max_products: int) -> str | None:
    if accumulators > MAX_ACCUMULATORS:
        return f"A thread holds {accumulators:g} sums; more than {MAX_ACCUMULATORS} do not fit into its registers."
    if products > max_products:
        return f"A thread's code has {products:g} products; with more than {max_products} it compiles for minutes."
    return None
