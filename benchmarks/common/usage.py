"""Measures how much memory and processor time a process uses."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from split_infer_ros.telemetry.machine import num_cores

MB = 1e6


def resident_bytes(process: int | None = None) -> int:
    """Returns the memory that a process has in RAM now (VmRSS), in bytes. None means this process."""
    return _status(process, "VmRSS")


def peak_bytes(process: int | None = None) -> int:
    """Returns the peak of a process's memory in RAM (VmHWM), in bytes, since its start or the last ``forget_peak``."""
    return _status(process, "VmHWM")


def forget_peak(process: int | None = None) -> None:
    """Lets ``peak_bytes`` return the peak since now. If the system forbids that, nothing changes."""
    try:
        Path(f"/proc/{process or 'self'}/clear_refs").write_text("5")
    except OSError:  # some containers forbid this
        return


def seconds_since_start() -> float:
    """Returns how long this process has been running, its imports included."""
    started = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _status(process: int | None, field: str) -> int:
    lines = Path(f"/proc/{process or 'self'}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


class Usage:
    """Measures the memory and processor time of several rivals that take turns in this process.

    A rival's peak is the peak of the whole process during the rival's turn. So it includes memory that other rivals
    keep.
    """

    def __init__(self) -> None:
        self._peaks: dict[str, list[int]] = {}
        self._busy: dict[str, list[float]] = {}

    @contextmanager
    def of(self, rival: str) -> Iterator[None]:
        """Measures one turn of a rival, which runs inside the ``with`` block."""
        forget_peak()
        begin, cpu_begin = time.perf_counter(), time.process_time()
        yield
        seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
        self._peaks.setdefault(rival, []).append(peak_bytes())
        # the kernel counts threads on other cores in ticks, so the sum can be a little too large
        self._busy.setdefault(rival, []).append(min(1.0, cpu_seconds / seconds / num_cores()))

    def row(self, rival: str) -> dict[str, float]:
        """Returns a rival's figures for a row of a report.

        Returns:
            ``peak_mb`` is the highest peak of all turns in MB. ``cpu_busy`` is the share of all cores' time that the
            process used, as the median of the turns.
        """
        return {"peak_mb": max(self._peaks[rival]) / MB, "cpu_busy": statistics.median(self._busy[rival])}
