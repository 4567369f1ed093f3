"""A partition's way through a ring: what its passes read, in which order, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from split_infer_ros.weight_streaming.prefetcher import STALL_S, WeightPrefetcher
from split_infer_ros.weight_streaming.ring import RingPlan
from split_infer_ros.weight_streaming.weights_file import Block, WeightsFile


@dataclass(frozen=True, slots=True)
class PrefetchStats:
    """Since the start.

    Attributes:
        passes: that ended.
        bytes_read: from the file.
        reading_s: seconds in which a read was in flight.
        stalled_s: seconds for which passes waited for weights.
    """

    passes: int
    bytes_read: int
    reading_s: float
    stalled_s: float

    @property
    def bandwidth(self) -> float:
        """Bytes a second while reading."""
        return self.bytes_read / self.reading_s if self.reading_s else 0.0


class WeightStream:
    """One file's portions through one reader's ring, for one thread at a time that runs the layers.

    Args:
        reader: of the ring.
        file: is closed with the track.
        plan: of the ring, for this partition.
        blocks: the plan's.
        stall_s: how long a step waits.

    Attributes:
        stalled_s: seconds for which passes waited.
    """

    def __init__(
        self,
        reader: WeightPrefetcher,
        file: WeightsFile,
        plan: RingPlan,
        blocks: Sequence[Block],
        stall_s: float = STALL_S,
    ) -> None:
        self.file = file
        self.plan = plan
        self.stalled_s = 0.0
        self._reader = reader
        self._blocks = blocks
        self._stall_s = stall_s
        self._trusted = False  # a pass was compared with the checksums as a whole
        self._passes = self._bytes = 0
        self._reading_s = 0.0
        reader.add(self)

    def expect(self) -> None:
        """The next pass in this ring will be this partition's."""
        self._reader.expect(self)

    def start(self) -> None:
        """A pass begins, as soon as no other partition's is under way."""
        self._reader.start(self)

    def has(self, step: int) -> bool:
        """True if a step's weights are there."""
        return self._reader.has(self.plan.needs[step])

    def begin(self, step: int) -> float:
        """Wait until a step's weights are there; returns for how many seconds.

        Raises:
            StreamError: they cannot be read, or did not come in time.
        """
        return self._reader.wait(self, self.plan.needs[step], self._stall_s)

    def end(self, step: int) -> None:
        """A step is done with its weights."""
        self._reader.release(self.plan.frees[step])

    def finish(self, failed: bool) -> None:
        """The pass is over."""
        self._trusted = not failed
        self._passes += 1
        self._reader.finish(self, failed)

    def stats(self) -> PrefetchStats:
        """Totals since the start."""
        return PrefetchStats(self._passes, self._bytes, self._reading_s, self.stalled_s)

    def close(self) -> None:
        """Read no more."""
        self._reader.drop(self, self._stall_s)

    def fetch(self, number: int, memory: memoryview) -> None:
        """Read a portion into the ring (on the reader's thread).

        A pass compares one block with its checksum, in turns; the first one, and one after a failure, all.

        Raises:
            StreamError: it cannot be read, or is not as it was written.
        """
        portion = self.plan.portions[number]
        block, place = self._blocks[portion.block], self.plan.offsets[portion.block]
        start = time.perf_counter()
        into = memory[place + portion.start : place + portion.start + portion.nbytes]
        self.file.read(block.offset + portion.start, into, self.layer(number))
        self._reading_s += time.perf_counter() - start
        self._bytes += portion.nbytes
        if portion.last and (not self._trusted or portion.block == self._passes % len(self._blocks)):
            self.file.check(block, memory[place : place + block.nbytes])

    def layer(self, number: int) -> str:
        """Whose weights a portion begins with."""
        portion = self.plan.portions[number]
        block = self._blocks[portion.block]
        begun = [piece for piece in block.pieces if piece.offset <= block.offset + portion.start]
        return begun[-1].layer
