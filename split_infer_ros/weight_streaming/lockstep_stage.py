"""The synchronous pipeline of paper 002: reading, copying and running advance together, with two buffers on each side.

In each cycle, layers run on one block, the next block is copied to the device, and the one after it is read. The next
cycle begins when all three are done.
"""

from __future__ import annotations

import itertools
import math
from concurrent.futures import Future, ThreadPoolExecutor

from split_infer_ros.weight_streaming.chunk_reader import ChunkReader
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.device_supply import BlockPlaces, DeviceSupply
from split_infer_ros.weight_streaming.prefetcher import TIMEOUT_S

Failure = tuple[int, Exception]
"""The cycle whose block failed, and what failed."""


class LockstepStage(DeviceSupply):
    """Supplies weights in two buffers on the device, in cycles that reading, copying and running share.

    Cycles are counted over all passes, by the block that runs. If a pass has an odd number of blocks, an empty cycle
    follows them. Buffers therefore also alternate between the last block of a pass and the first block of the next.

    Args:
        reader: reads the weights. Its plan has two buffers, and its chunks are the blocks. The stage closes it.
        memory: the host's buffers, into which the reader reads.
        places: the places of the blocks in the buffers of host and device.
        ops: the device's operations.
        timeout_s: the longest wait of a step.
    """

    def __init__(
        self, reader: ChunkReader, memory: memoryview, places: BlockPlaces, ops: DeviceOps, timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__(reader, places, ops, timeout_s)
        self._memory = memory
        self._cycles_per_pass = len(places.on_host) + len(places.on_host) % 2

    def close(self) -> None:
        """Ends both threads. The file is closed once no read is in flight."""
        self._begin_close()
        self._thread.join(self._timeout_s)

    def _copy_passes(self) -> None:
        cycle = 0
        try:
            with ThreadPoolExecutor(1, "weight_reader") as read_thread:
                while not self._is_closing:
                    failure = self._run_cycles(cycle, read_thread)
                    if failure is not None:
                        self._reader.end_pass(failed=True)
                        cycle = (failure[0] // self._cycles_per_pass + 1) * self._cycles_per_pass
                        self._fail_pass(self._blocks_before(cycle), failure[1])
        finally:
            self._reader.close()

    def _run_cycles(self, first: int, read_thread: ThreadPoolExecutor) -> Failure | None:
        """Runs cycles until the supply closes or a pass fails.

        It starts with the pass that begins at cycle ``first``. Nothing of this pass may have been read. After a
        failure, it still runs the passes before the failed one, then returns the failure.
        """
        failure: Failure | None = None
        try:
            if not self._wait_until_free(self._blocks_before(first)):
                return None
        except Exception as error:  # the device is lost
            return first, error
        for cycle in itertools.count(first - 2):  # the first two cycles have no block to run
            if failure is not None and cycle >= failure[0] // self._cycles_per_pass * self._cycles_per_pass:
                return failure
            end = math.inf if failure is None else failure[0]  # from this cycle on, no block is read or copied
            ready = self._blocks_before(max(cycle + 1, first))
            self._make_ready(ready)
            reading = read_thread.submit(self._read, cycle + 2) if cycle + 2 < end else None
            failures = [failure] if failure is not None else []
            try:
                if first <= cycle + 1 < end:
                    self._copy_in(cycle + 1)
            except Exception as error:
                failures.append((cycle + 1, error))
            failures += _failure_of(reading, cycle + 2)
            try:
                if not self._wait_until_free(ready):
                    return None
            except Exception as error:
                failures.append((cycle, error))
            failure = min(failures, key=lambda each: each[0], default=None)
        return None

    def _blocks_before(self, cycle: int) -> int:
        """Returns how many blocks run in the cycles before this one."""
        passes, index = divmod(cycle, self._cycles_per_pass)
        return passes * len(self._host_blocks) + min(index, len(self._host_blocks))

    def _read(self, cycle: int) -> None:
        """Reads the block that runs in a cycle. Does nothing for an empty cycle."""
        block = cycle % self._cycles_per_pass
        if block < len(self._host_blocks):
            self._reader.fetch(block, self._memory)
            if block == len(self._host_blocks) - 1:
                self._reader.end_pass(failed=False)

    def _copy_in(self, cycle: int) -> None:
        """Copies the block that runs in a cycle. Does nothing for an empty cycle."""
        block = cycle % self._cycles_per_pass
        if block < len(self._host_blocks):
            self._copy(block)


def _failure_of(reading: Future[None] | None, cycle: int) -> list[Failure]:
    """Waits for a read. Returns its failure in a list, which is empty if the read succeeded."""
    error = None if reading is None else reading.exception()
    return [(cycle, error)] if isinstance(error, Exception) else []
