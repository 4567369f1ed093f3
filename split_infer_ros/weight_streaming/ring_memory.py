"""The memory of a ring buffer: on the host, on the host but visible to a GPU, or on the GPU and the host."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from split_infer_ros.buffers.host_arrays import as_tensor
from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.shortage import host_bytes_free, shortage
from split_infer_ros.weight_streaming.chunk_reader import ChunkReader
from split_infer_ros.weight_streaming.copy_stage import CopyStage
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.lockstep_stage import LockstepStage
from split_infer_ros.weight_streaming.mapped_stage import MappedStage
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.prefetcher import WeightPrefetcher
from split_infer_ros.weight_streaming.ring_plan import RingPlan
from split_infer_ros.weight_streaming.weight_stream import WeightStream, WeightSupply
from split_infer_ros.weight_streaming.weights_file import Block, WeightsFile

if TYPE_CHECKING:
    from torch import Tensor

HUGE_PAGE = 2 << 20  # bytes


def page_aligned(nbytes: int) -> Tensor:
    """Allocates uint8 (n,) memory for reads with O_DIRECT. It is freed with its last view.

    The memory lies in huge pages if the kernel has any. A disk that writes to scattered small pages reaches a third of
    its bandwidth.

    Raises:
        OutOfMemory: the host has too little memory.
    """
    import torch  # only here: a process without torch has models whose weights are never streamed

    try:
        mapping = mmap.mmap(-1, nbytes + 2 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        sizes = shortage(nbytes, host_bytes_free(), "the host")
        raise OutOfMemory(f"Memory for weights cannot be allocated: {sizes} ({error.strerror}).") from error
    with suppress(OSError):  # a kernel without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    start = -memory.data_ptr() % HUGE_PAGE
    return memory[start : start + nbytes]


def byte_view(memory: Tensor) -> memoryview:
    """Returns uint8 (n,) memory on the CPU as a buffer to read into."""
    array: Any = memory.numpy()
    return memoryview(array)


class RingMemory:
    """A ring buffer on the host, with its prefetcher. Partitions that share it take turns.

    Args:
        ring: uint8 (capacity,), as the layers see it.
        host: the same ring as the disk writes to it; None if that is ``ring`` itself.

    Attributes:
        ring: as given.
        nbytes: memory of the ring on all sides.
    """

    def __init__(self, ring: Tensor, host: Tensor | None = None) -> None:
        self.ring = ring
        self.nbytes = ring.nbytes
        self._host = ring if host is None else host
        self._prefetcher = WeightPrefetcher(byte_view(self._host))

    def make_supply(
        self, file: WeightsFile, memory_plan: MemoryPlan, blocks: Sequence[Block], *, timeout_s: float
    ) -> WeightSupply:
        """Returns the supply of a partition's weights through this ring, not opened yet.

        Args:
            file: closed with the supply.
            memory_plan: whose ring is in this memory.
            blocks: of the ring.
            timeout_s: how long a step waits for its weights.
        """
        return self._stream(file, memory_plan.ring, blocks, timeout_s)

    def _stream(self, file: WeightsFile, plan: RingPlan, blocks: Sequence[Block], timeout_s: float) -> WeightStream:
        return WeightStream(self._prefetcher, ChunkReader(file, plan, blocks), timeout_s)


class MappedRingMemory(RingMemory):
    """A ring buffer in page-locked memory of the host, which the GPU reads where it lies (two-stage)."""

    def __init__(self, memory: Memory, ops: DeviceOps) -> None:
        super().__init__(as_tensor(memory.device), as_tensor(memory.host))
        self._memory = memory
        self._ops = ops

    @classmethod
    def allocate(cls, capacity: int, device: Device, ops: DeviceOps) -> MappedRingMemory:
        """Allocates a ring of that many bytes.

        Raises:
            ConfigurationError: this GPU has no such memory, or too little.
        """
        return cls(allocate(Policy.PINNED, capacity, device), ops)

    def make_supply(
        self, file: WeightsFile, memory_plan: MemoryPlan, blocks: Sequence[Block], *, timeout_s: float
    ) -> MappedStage:
        """Returns the supply of a partition's weights through this ring, not opened yet."""
        return MappedStage(self._stream(file, memory_plan.ring, blocks, timeout_s), self._ops)


class CopiedRingMemory(RingMemory):
    """A ring buffer on the GPU, and one of the same size on the host from which it is filled (three-stage)."""

    def __init__(self, memory: Memory, ops: DeviceOps) -> None:
        super().__init__(as_tensor(memory.device), as_tensor(memory.host))
        self.nbytes = memory.bytes
        self._memory = memory
        self._ops = ops

    @classmethod
    def allocate(cls, capacity: int, device: Device, ops: DeviceOps) -> CopiedRingMemory:
        """Allocates rings of that many bytes each.

        Raises:
            ConfigurationError: there is too little memory.
        """
        return cls(allocate(Policy.DEVICE, capacity, device), ops)

    def make_supply(
        self, file: WeightsFile, memory_plan: MemoryPlan, blocks: Sequence[Block], *, timeout_s: float
    ) -> CopyStage | LockstepStage:
        """Returns the supply of a partition's weights through these rings, not opened yet.

        Args:
            file: closed with the supply.
            memory_plan: whose rings are in this memory; it has one on the host.
            blocks: of the rings.
            timeout_s: how long a step waits for its weights.
        """
        staging = memory_plan.staging
        assert staging is not None
        block_sizes = [block.nbytes for block in blocks]
        host_blocks = block_views(self._host, staging, block_sizes)
        device_blocks = block_views(self.ring, memory_plan.ring, block_sizes)
        if memory_plan.is_lockstep:
            return LockstepStage(
                ChunkReader(file, staging, blocks),
                byte_view(self._host),
                host_blocks=host_blocks,
                device_blocks=device_blocks,
                plan=memory_plan.ring,
                ops=self._ops,
                timeout_s=timeout_s,
            )
        return CopyStage(
            self._stream(file, staging, blocks, timeout_s),
            host_blocks=host_blocks,
            device_blocks=device_blocks,
            plan=memory_plan.ring,
            ops=self._ops,
            timeout_s=2 * timeout_s,
        )


def block_views(ring: Tensor, plan: RingPlan, block_sizes: Sequence[int]) -> list[Tensor]:
    """Returns each block's place in a ring."""
    return [ring[offset : offset + size] for offset, size in zip(plan.offsets, block_sizes, strict=True)]
