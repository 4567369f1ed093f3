"""The memory of a ring buffer: on the host, on the host and visible to a GPU, or on GPU and host."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

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
from split_infer_ros.weight_streaming.device_supply import BlockPlaces
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
    """Allocates page-aligned memory, uint8 (nbytes,), for reads with O_DIRECT. The memory is freed with its last view.

    The memory lies in huge pages if the kernel has any. A disk reaches only a third of its bandwidth if it writes to
    scattered small pages.

    Raises:
        OutOfMemory: the host has too little memory.
    """
    import torch  # only here: a process without torch imports this module, and streams nothing

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
    """Returns CPU memory, uint8 (n,), as a buffer into which a file can be read."""
    array: Any = memory.numpy()
    return memoryview(array)


class RingMemory:
    """A ring buffer on the host, with its prefetcher. Partitions that share the ring take turns.

    Args:
        ring: the memory from which layers read, uint8 (capacity,).
        host: the host memory to which the disk writes; None if that is ``ring`` itself.

    Attributes:
        ring: as given.
        nbytes: bytes of the ring on host and device together.
    """

    def __init__(self, ring: Tensor, host: Tensor | None = None) -> None:
        self.ring = ring
        self.nbytes = ring.nbytes
        self._host = ring if host is None else host
        self._prefetcher = WeightPrefetcher(byte_view(self._host))

    def make_supply(
        self, file: WeightsFile, memory_plan: MemoryPlan, blocks: Sequence[Block], *, timeout_s: float
    ) -> WeightSupply:
        """Returns the supply of a partition's weights through this ring. The supply is not open yet.

        Args:
            file: the weights' file. The supply closes it.
            memory_plan: the plan of the ring in this memory.
            blocks: the blocks that pass through the ring.
            timeout_s: the longest wait of a step for its weights.
        """
        return WeightStream(self._prefetcher, ChunkReader(file, memory_plan.ring, blocks), timeout_s)


class GpuRingMemory(RingMemory):
    """A ring buffer from which a GPU reads.

    Args:
        memory: the ring's memory on host and GPU.
        ops: the device's operations.

    Attributes:
        policy: the policy of the memory.
    """

    policy: ClassVar[Policy]

    def __init__(self, memory: Memory, ops: DeviceOps) -> None:
        super().__init__(as_tensor(memory.device), as_tensor(memory.host))
        self.nbytes = memory.bytes
        self._memory = memory
        self._ops = ops

    @classmethod
    def allocate(cls, capacity: int, device: Device, ops: DeviceOps) -> GpuRingMemory:
        """Allocates a ring of ``capacity`` bytes, or one on each side if the policy needs a copy.

        Raises:
            ConfigurationError: the GPU does not allow the policy, or there is too little memory.
        """
        return cls(allocate(cls.policy, capacity, device), ops)


class MappedRingMemory(GpuRingMemory):
    """A ring buffer in page-locked memory of the host. The GPU reads it there (two-stage)."""

    policy = Policy.PINNED

    def make_supply(
        self, file: WeightsFile, memory_plan: MemoryPlan, blocks: Sequence[Block], *, timeout_s: float
    ) -> MappedStage:
        """Returns the supply of a partition's weights through this ring. The supply is not open yet."""
        return MappedStage(self._prefetcher, ChunkReader(file, memory_plan.ring, blocks), self._ops, timeout_s)


class CopiedRingMemory(GpuRingMemory):
    """A ring buffer on the GPU, filled from one of the same size on the host (three-stage)."""

    policy = Policy.DEVICE

    def make_supply(
        self, file: WeightsFile, memory_plan: MemoryPlan, blocks: Sequence[Block], *, timeout_s: float
    ) -> CopyStage | LockstepStage:
        """Returns the supply of a partition's weights through these rings. The supply is not open yet.

        Args:
            file: the weights' file. The supply closes it.
            memory_plan: the plan of the rings in this memory, with staging on the host.
            blocks: the blocks that pass through the rings.
            timeout_s: the longest wait of a copy for the disk. In the asynchronous pipeline, steps wait twice as long.
        """
        staging = memory_plan.staging
        assert staging is not None
        block_sizes = [block.nbytes for block in blocks]
        places = BlockPlaces(
            block_views(self._host, staging, block_sizes),
            block_views(self.ring, memory_plan.ring, block_sizes),
            memory_plan.ring,
        )
        reader = ChunkReader(file, staging, blocks)
        if memory_plan.is_lockstep:
            return LockstepStage(reader, byte_view(self._host), places, self._ops, timeout_s)
        return CopyStage(WeightStream(self._prefetcher, reader, timeout_s), places, self._ops, 2 * timeout_s)


def block_views(ring: Tensor, plan: RingPlan, block_sizes: Sequence[int]) -> list[Tensor]:
    """Returns a view of each block's place in a ring."""
    return [ring[offset : offset + size] for offset, size in zip(plan.offsets, block_sizes, strict=True)]
