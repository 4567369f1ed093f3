"""Reads one partition's weights into a ring buffer, chunk by chunk, and verifies them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from split_infer_ros.weight_streaming.ring_plan import RingPlan
from split_infer_ros.weight_streaming.weights_file import Block, WeightsFile


class ChunkReader:
    """Reads the chunks of a plan from a file. The prefetcher's thread calls it.

    In the first pass, and after a failure, the reader compares every block with its checksums. In any other pass it
    compares a single block, in each pass the next one.

    Args:
        file: the weights' file. The reader closes it.
        plan: the plan of the ring for this partition.
        blocks: the plan's blocks.

    Attributes:
        file, plan: as given.
        passes: number of passes that ended.
        bytes_read: bytes read since the start.
        reading_s: seconds spent in reads.
        checking_s: seconds spent comparing blocks with their checksums.
    """

    def __init__(self, file: WeightsFile, plan: RingPlan, blocks: Sequence[Block]) -> None:
        self.file = file
        self.plan = plan
        self.passes = self.bytes_read = 0
        self.reading_s = self.checking_s = 0.0
        self._blocks = blocks
        self._is_verified = False  # whether the last pass ended without a failure

    def fetch(self, index: int, memory: memoryview) -> None:
        """Reads a chunk into the ring.

        Args:
            index: the chunk's index in the plan.
            memory: the ring's memory.

        Raises:
            StreamError: the chunk cannot be read, or a block differs from what was written.
        """
        chunk = self.plan.chunks[index]
        block, place = self._blocks[chunk.block], self.plan.offsets[chunk.block]
        start = time.perf_counter()
        target = memory[place + chunk.start : place + chunk.start + chunk.nbytes]
        self.file.read(block.offset + chunk.start, target, self.layer(index))
        self.reading_s += time.perf_counter() - start
        self.bytes_read += chunk.nbytes
        if chunk.is_last and (not self._is_verified or chunk.block == self.passes % len(self._blocks)):
            start = time.perf_counter()
            self.file.check(block, memory[place : place + block.nbytes])
            self.checking_s += time.perf_counter() - start

    def layer(self, index: int) -> str:
        """Returns the name of the layer that owns the first byte of a chunk."""
        chunk = self.plan.chunks[index]
        block = self._blocks[chunk.block]
        return [piece for piece in block.pieces if piece.offset <= block.offset + chunk.start][-1].layer

    def end_pass(self, failed: bool) -> None:
        """Notes that a pass has ended. If it failed, every block is compared with its checksums in the next pass."""
        self._is_verified = not failed
        self.passes += 1

    def close(self) -> None:
        """Closes the file."""
        self.file.close()
