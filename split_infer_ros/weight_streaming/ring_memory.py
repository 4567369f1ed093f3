"""Where a ring lies: in this process's memory, in memory that a GPU reads as well, or on the GPU and the host."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from split_infer_ros.buffers.memory import allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.runtime.shortage import host_bytes_free, shortage
from split_infer_ros.weight_streaming.device_stages import CopyStage, MappedStage, Processor
from split_infer_ros.weight_streaming.prefetcher import WeightPrefetcher
from split_infer_ros.weight_streaming.ring import RingPlan, circular
from split_infer_ros.weight_streaming.weight_stream import WeightStream
from split_infer_ros.weight_streaming.weights_file import Block, WeightsFile

HUGE = 2 << 20  # bytes of a huge page


def page_aligned(nbytes: int) -> Tensor:
    """uint8 (n,), as O_DIRECT needs it; gone with its last view.

    It lies in huge pages where the kernel has any, of which the last one may be taken in part: a disk that writes to
    small ones, strewn over memory, gives a third of its bandwidth.

    Raises:
        OutOfMemory: there is not so much.
    """
    try:
        mapping = mmap.mmap(-1, nbytes + 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        said = shortage(nbytes, host_bytes_free(), "the host")
        raise OutOfMemory(f"Memory for weights cannot be had: {said} ({error.strerror}).") from error
    with suppress(OSError):  # a kernel without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -memory.data_ptr() % HUGE
    return memory[start : start + nbytes]


def buffer(memory: Tensor) -> memoryview:
    """The bytes of uint8 (n,) on the CPU, to read into."""
    array: Any = memory.numpy()
    return memoryview(array)


class RingMemory:
    """Memory for a ring of which layers see ``ring``, and its reader; partitions that share it take turns.

    Args:
        ring: uint8 (capacity,).
        host: the same, as the disk writes to it, unless the ring itself is.

    Attributes:
        nbytes: on all sides.
    """

    def __init__(self, ring: Tensor, host: Tensor | None = None) -> None:
        self.ring = ring
        self.nbytes = ring.nbytes
        self._host = ring if host is None else host
        self._reader = WeightPrefetcher(buffer(self._host))

    def stage(
        self, file: WeightsFile, plan: RingPlan, blocks: Sequence[Block], stall_s: float
    ) -> WeightStream | MappedStage | CopyStage:
        """What brings a partition's weights into the ring."""
        return WeightStream(self._reader, file, plan, blocks, stall_s)


class MappedRingMemory(RingMemory):
    """Memory of the host that the GPU reads as it is (two-stage).

    Raises:
        ConfigurationError: this GPU has no such memory, or not so much.
    """

    def __init__(self, capacity: int, device: torch.device, processor: Processor) -> None:
        self._memory = allocate(Policy.PINNED, capacity, device)
        super().__init__(self._memory.device, self._memory.host)
        self._processor = processor

    def stage(self, file: WeightsFile, plan: RingPlan, blocks: Sequence[Block], stall_s: float) -> MappedStage:
        """What brings a partition's weights into the ring."""
        return MappedStage(WeightStream(self._reader, file, plan, blocks, stall_s), self._processor)


class CopiedRingMemory(RingMemory):
    """A ring on the GPU, and one of the same size on the host from which it is filled (three-stage).

    Raises:
        ConfigurationError: there is not so much memory.
    """

    def __init__(self, capacity: int, device: torch.device, processor: Processor) -> None:
        self._memory = allocate(Policy.DEVICE, capacity, device)
        super().__init__(self._memory.device, self._memory.host)
        self.nbytes = self._memory.bytes
        self._processor = processor

    def stage(self, file: WeightsFile, plan: RingPlan, blocks: Sequence[Block], stall_s: float) -> CopyStage:
        """What brings a partition's weights into the ring."""
        sizes = [block.nbytes for block in blocks]
        source = circular(sizes, range(len(blocks)), len(self._host))
        weight_stream = WeightStream(self._reader, file, source, blocks, stall_s)
        rings = _slices(self._host, source, sizes), _slices(self.ring, plan, sizes)
        return CopyStage(weight_stream, *rings, plan, self._processor, 2 * stall_s)


def _slices(ring: Tensor, plan: RingPlan, sizes: Sequence[int]) -> list[Tensor]:
    return [ring[offset : offset + size] for offset, size in zip(plan.offsets, sizes, strict=True)]
