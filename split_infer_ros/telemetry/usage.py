"""What a process takes of its machine: memory, and time of its processors."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from split_infer_ros.telemetry.machine import cores

MB = 1e6


def resident_bytes(process: int | None = None) -> int:
    """Memory of a process that is in RAM now (VmRSS); of this process unless another one is named."""
    return _status(process, "VmRSS")


def peak_bytes(process: int | None = None) -> int:
    """The most memory that a process had in RAM (VmHWM) since its start, or since ``forget_peak``."""
    return _status(process, "VmHWM")


def forget_peak(process: int | None = None) -> None:
    """Have ``peak_bytes`` count from now on; without the right to do so nothing changes."""
    try:
        Path(f"/proc/{process or 'self'}/clear_refs").write_text("5")
    except OSError:  # some containers forbid it
        return


def seconds_since_start() -> float:
    """How long this process has been running, its imports included."""
    started = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _status(process: int | None, field: str) -> int:
    lines = Path(f"/proc/{process or 'self'}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


class Usage:
    """What each of several rivals in this process takes in its turns.

    A rival's peak is that of the whole process while the rival has its turn: what all of them keep in memory counts for
    each.
    """

    def __init__(self) -> None:
        self._peaks: dict[str, list[int]] = {}
        self._busy: dict[str, list[float]] = {}

    @contextmanager
    def of(self, rival: str) -> Iterator[None]:
        """A turn of that rival."""
        forget_peak()
        begin, cpu = time.perf_counter(), time.process_time()  # of all threads, in nanoseconds
        yield
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        self._peaks.setdefault(rival, []).append(peak_bytes())
        # the kernel counts threads on other cores by ticks, which can make it a little too much
        self._busy.setdefault(rival, []).append(min(1.0, cpu / seconds / cores()))

    def row(self, rival: str) -> dict[str, float]:
        """For a row of a report: ``peak_mb``, the highest, and ``cpu_busy``, the median share of all cores' time."""
        return {"peak_mb": max(self._peaks[rival]) / MB, "cpu_busy": statistics.median(self._busy[rival])}
