"""Supplies weights to a partition. The partition tells the supply when its passes and steps begin and end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from split_infer_ros.weight_streaming.chunk_reader import ChunkReader
from split_infer_ros.weight_streaming.prefetcher import TIMEOUT_S, WeightPrefetcher


@dataclass(frozen=True, slots=True)
class PrefetchStats:
    """Totals of a partition's weight stream since its start.

    Attributes:
        passes: number of passes that ended.
        bytes_read: bytes read from the file.
        reading_s: seconds spent in reads.
        stalled_s: seconds that passes waited for weights.
        bytes_copied: bytes copied from the host to a device.
        copying_s: seconds spent in copies.
        checking_s: seconds spent comparing weights with their checksums. Nothing is read meanwhile.
    """

    passes: int
    bytes_read: int
    reading_s: float
    stalled_s: float
    bytes_copied: int = 0
    copying_s: float = 0.0
    checking_s: float = 0.0

    @classmethod
    def of(cls, reader: ChunkReader, stalled_s: float) -> PrefetchStats:
        """Returns a reader's totals, with the seconds that passes waited. Copied bytes and seconds are 0."""
        return cls(reader.passes, reader.bytes_read, reader.reading_s, stalled_s, checking_s=reader.checking_s)

    @property
    def bandwidth(self) -> float:
        """Bytes a second during reads; 0 if nothing was read."""
        return self.bytes_read / self.reading_s if self.reading_s else 0.0


class WeightSupply(Protocol):
    """Brings weights to the memory from which a partition's layers read. One thread at a time may run the layers."""

    def open(self) -> None:
        """Begins to read weights."""

    def expect_next(self) -> None:
        """Tells the thread that reads ahead that this partition runs the next pass in the ring."""

    def begin_pass(self) -> None:
        """Waits until no other partition runs a pass in the ring, then begins a pass."""

    def begin_step(self, step: int) -> float:
        """Waits for a step's weights. Returns the seconds that it waited.

        Raises:
            StreamError: the weights cannot be read, or did not come in time.
        """

    def end_step(self, step: int) -> None:
        """Notes that a step has run or was queued on the device. Its weights may be overwritten once it has run."""

    def end_pass(self, failed: bool) -> None:
        """Ends a pass, which raised an error if ``failed``."""

    def stats(self) -> PrefetchStats:
        """Returns totals since the start."""

    def close(self) -> None:
        """Ends reading, and closes the file."""


class WeightStream:
    """Supplies weights to a partition on the CPU. Its layers read from the ring that the prefetcher fills.

    Args:
        prefetcher: the ring's prefetcher.
        reader: reads this partition's weights. ``close`` closes it.
        timeout_s: the longest wait of a step for its weights, in seconds.
    """

    def __init__(self, prefetcher: WeightPrefetcher, reader: ChunkReader, timeout_s: float = TIMEOUT_S) -> None:
        self.reader = reader
        self._prefetcher = prefetcher
        self._timeout_s = timeout_s
        self._stalled_s = 0.0

    def open(self) -> None:
        """Begins to read weights."""
        self._prefetcher.add(self.reader)

    def expect_next(self) -> None:
        """Tells the thread that reads ahead that this partition runs the next pass in the ring."""
        self._prefetcher.expect_next(self.reader)

    def begin_pass(self) -> None:
        """Waits until no other partition runs a pass in the ring, then begins a pass."""
        self._prefetcher.begin_pass(self.reader)

    def has_step(self, step: int) -> bool:
        """True if a step's weights were read."""
        return self._prefetcher.has_read(self.reader.plan.chunks_needed[step])

    def begin_step(self, step: int) -> float:
        """Waits until a step's weights were read. Returns the seconds that it waited.

        Raises:
            StreamError: the weights cannot be read, or did not come in time.
        """
        needed = self.reader.plan.chunks_needed[step]
        if self._prefetcher.has_read(needed):
            return 0.0
        start = time.perf_counter()
        try:
            self._prefetcher.wait_for(self.reader, needed, self._timeout_s)
        finally:
            waited = time.perf_counter() - start
            self._stalled_s += waited
        return waited

    def end_step(self, step: int) -> None:
        """Notes that a step no longer needs its weights."""
        self._prefetcher.free(self.reader.plan.chunks_freed[step])

    def end_pass(self, failed: bool) -> None:
        """Ends a pass, which raised an error if ``failed``."""
        self.reader.end_pass(failed)
        self._prefetcher.end_pass(self.reader, failed)

    def stats(self) -> PrefetchStats:
        """Returns totals since the start."""
        return PrefetchStats.of(self.reader, self._stalled_s)

    def close(self) -> None:
        """Ends reading, and closes the file."""
        self._prefetcher.remove(self.reader, self._timeout_s)
