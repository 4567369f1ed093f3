"""Times probes for the constants of Table III that exist without a GPU: copies, first touch, cache and memory.

Copies are made within the host's memory, so l_hd and l_dh are equal. All policies are plain memory, and nothing is
mapped or flushed, so the constants of mapping and flushing are absent. All probes run on one core, because other cores
may be busy.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from split_infer_ros.memory_cost.calibration import CACHED_BLOCK, REREAD_SIZES
from split_infer_ros.memory_cost.samples import Probe

Bytes = NDArray[np.uint8]


class CpuMicrobenchmarks:
    """Times probes on the CPU.

    Attributes:
        probes: the probes that can be timed without a GPU.
    """

    probes = (
        Probe.TO_DEVICE,
        Probe.TO_HOST,
        Probe.TOUCH_FRESH,
        Probe.TOUCH_AGAIN,
        Probe.REREAD_CACHED,
        Probe.REREAD_UNCACHED,
    )

    def __init__(self) -> None:
        self._source = np.ones(REREAD_SIZES[-1], np.uint8)
        self._target = np.ones(REREAD_SIZES[-1], np.uint8)
        self._begin = 0  # the offset of the next cold bytes in the source

    def __call__(self, probe: Probe, nbytes: int) -> float:
        """Returns the seconds that a probe takes on ``nbytes`` bytes."""
        if probe in (Probe.TOUCH_FRESH, Probe.TOUCH_AGAIN):
            return touch(nbytes, again=probe is Probe.TOUCH_AGAIN)
        if probe is Probe.REREAD_CACHED:
            block = self._source[:CACHED_BLOCK]
            read(block)  # brings the block into the cache
            return clocked(lambda: [read(block) for _ in range(nbytes // CACHED_BLOCK)])
        source = self._cold(nbytes)
        if probe is Probe.REREAD_UNCACHED:
            blocks = np.split(source, nbytes // CACHED_BLOCK)
            return clocked(lambda: [read(block) for block in blocks])
        target = self._target[:nbytes]
        return clocked(lambda: np.copyto(target, source))

    def _cold(self, nbytes: int) -> Bytes:
        """Returns memory that was not read for a long time, so that no cache holds it."""
        if self._begin + nbytes > len(self._source):
            self._begin = 0
            self._source, self._target = self._target, self._source
        self._begin += nbytes
        return self._source[self._begin - nbytes : self._begin]


def read(data: Bytes) -> Any:
    """Reads each byte of ``data`` once. The length must be a multiple of 4. The result is of no use."""
    return data.view(np.float32).max()  # a maximum is computed faster than memory is read; a sum is not


def touch(nbytes: int, again: bool) -> float:
    """Returns the seconds that the CPU takes to write ``nbytes`` bytes of new memory.

    If ``again`` is true, the memory was written once before.
    """
    data = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)  # an allocator could reuse memory that was touched
    first = clocked(lambda: data.fill(1))
    return clocked(lambda: data.fill(2)) if again else first


def clocked(work: Callable[[], object]) -> float:
    """Returns the seconds that ``work`` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
