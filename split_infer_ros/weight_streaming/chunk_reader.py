"""Reads one partition's weights into a ring buffer, chunk by chunk, and verifies them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from split_infer_ros.weight_streaming.ring_plan import RingPlan
from split_infer_ros.weight_streaming.weights_file import Block, WeightsFile


class ChunkReader:
    """Reads the chunks of a plan from a file. It is used by the prefetcher's thread.

    After the first pass, and after a failure, every block is compared with its checksums. Other passes compare one
    block each, in turns.

    Args:
        file: closed with the reader.
        plan: of the ring, for this partition.
        blocks: of the plan.

    Attributes:
        file, plan: as given.
        passes: that ended.
        bytes_read: since the start.
        reading_s: seconds in which a read was in flight.
        checking_s: seconds in which blocks were compared with their checksums.
    """

    def __init__(self, file: WeightsFile, plan: RingPlan, blocks: Sequence[Block]) -> None:
        self.file = file
        self.plan = plan
        self.passes = self.bytes_read = 0
        self.reading_s = self.checking_s = 0.0
        self._blocks = blocks
        self._is_verified = False  # the last pass was sound as a whole

    def fetch(self, index: int, memory: memoryview) -> None:
        """Reads a chunk into the ring.

        Args:
            index: of the chunk in the plan.
            memory: of the ring.

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
        """Returns the name of the layer whose weights a chunk begins with."""
        chunk = self.plan.chunks[index]
        block = self._blocks[chunk.block]
        return [piece for piece in block.pieces if piece.offset <= block.offset + chunk.start][-1].layer

    def end_pass(self, failed: bool) -> None:
        """Notes that a pass is over."""
        self._is_verified = not failed
        self.passes += 1

    def close(self) -> None:
        """Closes the file."""
        self.file.close()
