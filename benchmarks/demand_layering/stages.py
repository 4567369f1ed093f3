"""The pipelines of paper 002 on two cores: one reads and copies, the other computes as the paper's GPU does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

from torch import Tensor

from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.runtime.streams import Fence, Mark
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_partition import PackedPartition
from split_infer_ros.weight_streaming.ring_memory import CopiedRingMemory, page_aligned
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.weights_file import WeightsFile

Bound = Callable[[], AbstractContextManager[None]]  # binds the calling thread, and those that it starts, to a core


class PacedFile(WeightsFile):
    """A file that is read at a fixed rate, as a disk would answer that is no faster and never slower.

    Attributes:
        bytes_s: the rate, in bytes a second.
    """

    bytes_s = math.inf
    _due = 0.0

    @classmethod
    def at(cls, bytes_s: float) -> Callable[[Path], PacedFile]:
        """Returns a function that opens files to be read at a rate."""

        def open_paced(path: Path) -> PacedFile:
            file: Self = cls.open(path)
            file.bytes_s = bytes_s
            return file

        return open_paced

    def read(self, offset: int, memory: memoryview, layer: str) -> None:
        """Fills memory as ``WeightsFile`` does, and returns when the rate allows it."""
        begin = time.perf_counter()
        super().read(offset, memory, layer)
        self._due = max(begin, self._due) + len(memory) / self.bytes_s
        time.sleep(max(0.0, self._due - time.perf_counter()))


def no_mark() -> Mark:
    """Refuses: a CPU's times are taken on the host."""
    raise NotImplementedError("A core has no marks.")


def copy(target: Tensor, source: Tensor) -> None:
    """Copies a block, as the copy engine of a GPU does."""
    with inference_mode():
        target.copy_(source)


OPS = DeviceOps(copy, Fence, no_mark)


def open_pipeline(
    packed: PackedPartition, memory_plan: MemoryPlan, bound: Bound, open_file: Callable[[Path], WeightsFile]
) -> StreamedPartition:
    """Opens a partition whose threads that read and copy are bound to one core.

    Args:
        packed: the partition. It belongs to the result.
        memory_plan: its memory. With staging, blocks are copied from one ring in memory to another.
        bound: binds the threads.
        open_file: opens the file of the weights.
    """
    ring_memory = None
    if memory_plan.staging is not None:
        capacity = memory_plan.ring.capacity
        ring_memory = CopiedRingMemory(Memory(Policy.DEVICE, page_aligned(capacity), page_aligned(capacity)), OPS)
    with bound():
        return StreamedPartition.open(packed, memory_plan, ring_memory=ring_memory, open_file=open_file)
