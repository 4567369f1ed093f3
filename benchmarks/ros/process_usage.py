"""The memory and processor time of rivals that have their own processes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common.usage import MB, peak_bytes
from split_infer_ros.telemetry.machine import num_cores


class ProcessUsage:
    """Measures the memory and processor time of rivals. Each rival has one or more processes.

    Args:
        processes: the process ids of each rival.
    """

    def __init__(self, processes: Mapping[str, Sequence[int]]) -> None:
        self._processes = processes
        self._busy: dict[str, list[float]] = {rival: [] for rival in processes}

    @contextmanager
    def of(self, rival: str) -> Iterator[None]:
        """Measures the processor time of one turn of a rival, which runs inside the ``with`` block."""
        begin, cpu = time.perf_counter(), self._cpu_seconds(rival)
        yield
        seconds, cpu = time.perf_counter() - begin, self._cpu_seconds(rival) - cpu
        self._busy[rival].append(cpu / seconds / num_cores())

    def row(self, rival: str) -> dict[str, float]:
        """Returns the figures of a rival for a row of a report.

        ``peak_mb`` is the peak memory since the start of the processes in MB, summed over the rival's processes. Shared
        memory is added for each process. ``cpu_busy`` is the share of all cores' time that the rival used, as the
        mean of its turns.
        """
        peak = sum(peak_bytes(process) for process in self._processes[rival]) / MB
        return {"peak_mb": peak, "cpu_busy": statistics.mean(self._busy[rival])}

    def _cpu_seconds(self, rival: str) -> float:
        ticks = 0
        for process in self._processes[rival]:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # in user mode and in the kernel
        return ticks / os.sysconf("SC_CLK_TCK")
