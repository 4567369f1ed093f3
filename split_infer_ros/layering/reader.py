"""The thread that reads weights into the ring, portion by portion, as the layers before give their place up.

One read is in flight at a time: as measured, several read no more in a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from split_infer_ros.errors import StreamError
from split_infer_ros.layering.ring import RingPlan
from split_infer_ros.layering.weights_file import Block, WeightsFile

STALL_S = 10.0  # a pass waits no longer for a portion


@dataclass(frozen=True, slots=True)
class ReaderStats:
    """Since the start.

    Attributes:
        passes: begun.
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


class Reader:
    """Keeps the ring filled, pass after pass, for one thread that runs the layers.

    Portions are counted from the first pass on: ``read`` of them are there, ``released`` of them are done with. What a
    pass lacked when it failed is passed over, and the next pass is read in whole.

    Args:
        file: is closed with the reader.
        plan: of the ring.
        blocks: the plan's.
        memory: of the ring, page-aligned.
        stall_s: how long a step waits.
    """

    def __init__(
        self,
        file: WeightsFile,
        plan: RingPlan,
        blocks: Sequence[Block],
        memory: memoryview,
        stall_s: float = STALL_S,
    ) -> None:
        self._file = file
        self._plan = plan
        self._blocks = blocks
        self._memory = memory
        self._stall_s = stall_s
        self._changed = threading.Condition()
        self._base = self._read = self._released = 0
        self._failed: tuple[int, StreamError] | None = None  # from which portion on, and why
        self._check_until = len(plan.portions)  # the first pass is compared with the checksums as a whole
        self._closing = False
        self._passes = self._bytes = 0
        self._reading_s = self._stalled_s = 0.0
        self._thread = threading.Thread(target=self._loop, name="weights", daemon=True)
        self._thread.start()

    def has(self, step: int) -> bool:
        """True if a step's weights are there."""
        return self._read >= self._base + self._plan.needs[step]

    def begin(self, step: int) -> float:
        """Wait until a step's weights are there; returns for how many seconds.

        Raises:
            StreamError: they cannot be read, or did not come in time.
        """
        wanted = self._base + self._plan.needs[step]
        if self._read >= wanted:
            return 0.0
        start = time.perf_counter()
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._read >= wanted or self._closing or self._hits(wanted), self._stall_s
            )
            waited = time.perf_counter() - start
            self._stalled_s += waited
            if self._read >= wanted:
                return waited
            if self._failed is not None and there:
                raise self._failed[1]
            if self._closing:
                raise StreamError("weights_unreadable", f"{self._file.path} is being closed.")
            layer = self._layer(self._read)
        raise StreamError(
            "weights_stalled", f"The disk of {self._file.path} did not give layer '{layer}' within {self._stall_s:g} s."
        )

    def end(self, step: int) -> None:
        """A step is done with its weights."""
        released = self._base + self._plan.frees[step]
        if released > self._released:
            with self._changed:
                self._released = released
                self._changed.notify_all()

    def finish(self, failed: bool) -> None:
        """The pass is over; the next one's portions count from here."""
        with self._changed:
            self._base += len(self._plan.portions)
            self._released = self._base
            self._passes += 1
            if failed:
                self._check_until = self._base + len(self._plan.portions)
                self._failed = None
            self._changed.notify_all()

    def stats(self) -> ReaderStats:
        """Totals since the start."""
        return ReaderStats(self._passes, self._bytes, self._reading_s, self._stalled_s)

    def close(self) -> None:
        """End the thread; one that the disk holds is left to it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(self._stall_s)

    def _loop(self) -> None:
        portions = self._plan.portions
        try:
            while portions:
                with self._changed:
                    self._changed.wait_for(self._may_read)
                    if self._closing:
                        return
                    number = self._read = max(self._read, self._base)  # a failed pass is not read to its end
                try:
                    self._fetch(number)
                except StreamError as error:
                    with self._changed:
                        if number >= self._base:  # else its pass has given up already
                            self._failed = number, error
                        self._changed.notify_all()
                    continue
                with self._changed:
                    self._read = max(number + 1, self._base)
                    self._changed.notify_all()
        finally:
            self._memory.release()
            self._file.close()

    def _hits(self, wanted: int) -> bool:
        return self._failed is not None and self._failed[0] < wanted

    def _may_read(self) -> bool:
        if self._closing:
            return True
        number = max(self._read, self._base)
        window = self._plan.window[number % len(self._plan.portions)]
        return self._failed is None and number - window <= self._released

    def _fetch(self, number: int) -> None:
        portion = self._plan.portions[number % len(self._plan.portions)]
        block = self._blocks[portion.block]
        place = self._plan.offsets[portion.block]
        start = time.perf_counter()
        into = self._memory[place + portion.start : place + portion.start + portion.nbytes]
        self._file.read(block.offset + portion.start, into, self._layer(number))
        self._reading_s += time.perf_counter() - start
        self._bytes += portion.nbytes
        turn = number // len(self._plan.portions) % len(self._blocks)  # later, a pass checks one block
        if portion.last and (number < self._check_until or portion.block == turn):
            block.check(self._memory[place : place + block.nbytes])

    def _layer(self, number: int) -> str:
        """Whose weights a portion begins with."""
        portion = self._plan.portions[number % len(self._plan.portions)]
        block = self._blocks[portion.block]
        begun = [piece for piece in block.pieces if piece.offset <= block.offset + portion.start]
        return begun[-1].layer
