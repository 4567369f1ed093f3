"""What a CPU alone has of Table III: a copy, a first touch, its cache and its memory.

Both sides of a copy are the same memory, so l_hd and l_dh are alike. Nothing is mapped or flushed, and all policies are
plain memory: those constants are absent. One core does all of it, since the others may have work.
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
    """The times of its probes."""

    probes = (
        Probe.TO_DEVICE,
        Probe.TO_HOST,
        Probe.TOUCH_FRESH,
        Probe.TOUCH_AGAIN,
        Probe.REREAD_CACHED,
        Probe.REREAD_UNCACHED,
    )

    def __init__(self) -> None:
        self._one, self._other = (np.ones(REREAD_SIZES[-1], np.uint8) for _ in range(2))
        self._begin = 0

    def __call__(self, probe: Probe, nbytes: int) -> float:
        """Seconds that the probe takes on so many bytes."""
        if probe in (Probe.TOUCH_FRESH, Probe.TOUCH_AGAIN):
            return touch(nbytes, again=probe is Probe.TOUCH_AGAIN)
        if probe is Probe.REREAD_CACHED:
            block = self._one[:CACHED_BLOCK]
            read(block)  # now it is in the cache
            return clocked(lambda: [read(block) for _ in range(nbytes // CACHED_BLOCK)])
        source = self._cold(nbytes)
        if probe is Probe.REREAD_UNCACHED:
            blocks = np.split(source, nbytes // CACHED_BLOCK)
            return clocked(lambda: [read(block) for block in blocks])
        target = self._other[:nbytes]
        return clocked(lambda: np.copyto(target, source))

    def _cold(self, nbytes: int) -> Bytes:
        """Memory that was not read for long, so that no cache holds it."""
        if self._begin + nbytes > len(self._one):
            self._begin = 0
            self._one, self._other = self._other, self._one
        self._begin += nbytes
        return self._one[self._begin - nbytes : self._begin]


def read(data: Bytes) -> Any:
    """Read each byte once."""
    return data.view(np.float32).max()  # faster than memory is, as a sum would not be


def touch(nbytes: int, again: bool) -> float:
    """Seconds in which the CPU writes memory that nobody has touched; ``again``: for the second time."""
    data = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)  # no allocator has it from an earlier use
    first = clocked(lambda: data.fill(1))
    return clocked(lambda: data.fill(2)) if again else first


def clocked(work: Callable[[], object]) -> float:
    """Seconds of work."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
