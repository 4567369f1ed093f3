"""Where a ring lies: in this process's memory, in memory that a GPU reads as well, or on the GPU beside one of the host."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from split_infer_ros.buffers.memory import allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.layering.device_stages import CopyStage, MappedStage, Processor
from split_infer_ros.layering.packed_file import PAGE
from split_infer_ros.layering.reader import Block, Reader, WeightsFile
from split_infer_ros.layering.ring import RingPlan, circular


def page_aligned(nbytes: int) -> Tensor:
    """uint8 (n,), as O_DIRECT needs it; gone with its last view."""
    return torch.frombuffer(mmap.mmap(-1, max(nbytes, PAGE)), dtype=torch.uint8)[:nbytes]


class Home:
    """Memory for a ring of which layers see ``ring``.

    Args:
        ring: uint8 (capacity,).

    Attributes:
        nbytes: on all sides.
    """

    def __init__(self, ring: Tensor) -> None:
        self.ring = ring
        self.nbytes = ring.nbytes

    def stage(
        self, file: WeightsFile, plan: RingPlan, blocks: Sequence[Block], stall_s: float
    ) -> Reader | MappedStage | CopyStage:
        """What fills the ring."""
        return Reader(file, plan, blocks, memoryview(self.ring.numpy()), stall_s)


class MappedHome(Home):
    """Memory of the host that the GPU reads as it is (two-stage).

    Raises:
        ConfigurationError: this GPU has no such memory, or not so much.
    """

    def __init__(self, capacity: int, device: torch.device, processor: Processor) -> None:
        self._memory = allocate(Policy.PINNED, capacity, device)
        super().__init__(self._memory.device)
        self._processor = processor

    def stage(self, file: WeightsFile, plan: RingPlan, blocks: Sequence[Block], stall_s: float) -> MappedStage:
        """What fills the ring."""
        reader = Reader(file, plan, blocks, memoryview(self._memory.host.numpy()), stall_s)
        return MappedStage(reader, self._processor)


class CopiedHome(Home):
    """A ring on the GPU, and one of the same size on the host from which it is filled (three-stage).

    Raises:
        ConfigurationError: there is not so much memory.
    """

    def __init__(self, capacity: int, device: torch.device, processor: Processor) -> None:
        self._memory = allocate(Policy.DEVICE, capacity, device)
        super().__init__(self._memory.device)
        self.nbytes = self._memory.bytes
        self._processor = processor

    def stage(self, file: WeightsFile, plan: RingPlan, blocks: Sequence[Block], stall_s: float) -> CopyStage:
        """What fills the ring."""
        host = self._memory.host
        sizes = [block.nbytes for block in blocks]
        source = circular(sizes, range(len(blocks)), len(host))
        reader = Reader(file, source, blocks, memoryview(host.numpy()), stall_s)
        slices = [
            [ring[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
            for ring, offsets in ((host, source.offsets), (self.ring, plan.offsets))
        ]
        return CopyStage(reader, *slices, plan, self._processor)
