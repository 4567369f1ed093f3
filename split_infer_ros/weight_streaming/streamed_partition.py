"""A partition of a model that reads its weights while its layers run (paper 002: demand layering)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.streams import Mark
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.prefetcher import TIMEOUT_S
from split_infer_ros.weight_streaming.ring_memory import RingMemory, byte_view, page_aligned
from split_infer_ros.weight_streaming.step_timer import DeviceStepTimer, PassTimes, StepTimer
from split_infer_ros.weight_streaming.weight_stream import PrefetchStats, WeightSupply
from split_infer_ros.weight_streaming.weights_file import Block, WeightsFile

if TYPE_CHECKING:  # the server imports this class in processes without torch too
    from torch import Tensor

    from split_infer_ros.weight_streaming.packed_partition import PackedPartition


class StreamedPartition:
    """A partition that waits for the weights of each layer before the layer runs. Use ``open`` to create one.

    It maps images, (N, C, H, W), or the tensors of a split point to a tuple of tensors, like a partition with resident
    weights.

    Attributes:
        note: a sentence if weights are streamed in another way than the user asked for, else empty.
        weight_bytes: bytes of all memory for weights, rings on host and device included.
        ring_memory: the ring's memory, which other partitions may share.
        times: the times of the last pass that ended without an error; None before there is one.
    """

    def __init__(
        self,
        graph: Callable[..., Sequence[Tensor]],
        supply: WeightSupply,
        timer: StepTimer | DeviceStepTimer,
        *,
        kept_memory: Tensor,
        ring_memory: RingMemory,
        note: str,
    ) -> None:
        self.note = note
        self.weight_bytes = kept_memory.nbytes + ring_memory.nbytes
        self.ring_memory = ring_memory
        self._kept_memory = kept_memory  # blocked weights point into this and the ring, but do not keep them alive
        self._graph = graph
        self._supply = supply
        self._timer = timer
        self._pass_lock = threading.Lock()
        self.times: PassTimes | None = None

    @classmethod
    def open(
        cls,
        packed: PackedPartition,
        memory_plan: MemoryPlan,
        *,
        timeout_s: float = TIMEOUT_S,
        ring_memory: RingMemory | None = None,
        mark: Callable[[], Mark] | None = None,
        open_file: Callable[[Path], WeightsFile] = WeightsFile.open,
    ) -> StreamedPartition:
        """Reads the weights that stay in memory, and begins to stream the others.

        Args:
            packed: the partition. Its graph is changed in place and belongs to the result.
            memory_plan: the memory plan of the partition's blocks.
            timeout_s: the longest wait of a step for weights.
            ring_memory: the ring's memory, which partitions may share. None allocates a ring on the host.
            mark: marks the current point in a device's work, to take times on the device. None takes times on the
                host, without waiting for a device.
            open_file: opens the file of the weights.

        Raises:
            OutOfMemory: the host has too little memory.
            StreamError: weights that stay in memory cannot be read.
            WeightsError: the file cannot be opened.
        """
        from split_infer_ros.split.export import set_device
        from split_infer_ros.weight_streaming.binding import PiecePlaces, add_places, bind_weights

        kept_blocks = [Block((piece,)) for piece in packed.kept]
        kept_blocks += packed.blocks[: memory_plan.resident_blocks]
        streamed_blocks = packed.blocks[memory_plan.resident_blocks :]
        ring = memory_plan.ring
        if ring_memory is None:
            ring_memory = RingMemory(page_aligned(ring.capacity))
        kept_memory = page_aligned(sum(block.nbytes for block in kept_blocks))
        file = open_file(packed.path)
        with ExitStack() as undo:
            undo.callback(file.close)
            file.load(kept_blocks, byte_view(kept_memory))
            kept_memory = kept_memory.to(ring_memory.ring.device)
            places: PiecePlaces = {}
            offset = 0
            for block in kept_blocks:
                add_places(places, block, kept_memory, offset)
                offset += block.nbytes
            for block, offset in zip(streamed_blocks, ring.offsets, strict=True):
                add_places(places, block, ring_memory.ring, offset)
            supply = ring_memory.make_supply(file, memory_plan, streamed_blocks, timeout_s=timeout_s)
            timer = StepTimer(supply, len(packed.step_blocks)) if mark is None else DeviceStepTimer(supply, mark)
            graph = bind_weights(packed, places, timer)
            set_device(graph, Device.of(ring_memory.ring))
            supply.open()
            undo.pop_all()
        return cls(graph, supply, timer, kept_memory=kept_memory, ring_memory=ring_memory, note=file.note)

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """Runs a pass.

        Raises:
            StreamError: weights could not be read, or did not come in time. The next pass reads all weights again.
        """
        with self._pass_lock:
            self._supply.begin_pass()
            self._timer.begin_pass()
            failed = True
            try:
                results = self._graph(*inputs)
                failed = False
            finally:
                self._supply.end_pass(failed)
            self.times = self._timer.end_pass()
            return results

    def expect_next(self) -> None:
        """Tells a ring that several partitions share that this partition runs the next pass.

        The ring's prefetcher can then read this partition's first weights while another partition still runs.
        """
        self._supply.expect_next()

    def stats(self) -> PrefetchStats:
        """Returns how much was read since ``open``, and how long passes waited for weights."""
        return self._supply.stats()

    def close(self) -> None:
        """Ends reading, closes the file, and drops the layers. A later call raises ``RuntimeError``."""
        self._supply.close()
        self._graph = _closed


def _closed(*_: Tensor) -> Sequence[Tensor]:
    raise RuntimeError("This partition is closed.")
