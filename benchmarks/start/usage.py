"""Measures the memory and processor time of processes that have just started, with their child processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from benchmarks.common.usage import MB

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def family_of(processes: Iterable[int]) -> set[int]:
    """Returns the ids of processes and of all their running child processes, children of children included."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _fields(int(folder.name))
        if fields:
            parents[int(folder.name)] = int(fields[1])
    family = set(processes)
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return family


def processor_seconds(processes: Iterable[int]) -> float:
    """Returns the processor time of processes since their start, in user mode and in the kernel, in seconds.

    The time of children that have ended is included. Clock ticks, usually of 10 ms, limit the precision.
    """
    return sum(sum(map(int, fields[11:15])) for process in processes if (fields := _fields(process))) * TICK_S


def memory_mb(processes: Iterable[int]) -> tuple[float, float]:
    """Returns the resident and the anonymous memory of processes in MB. Shared pages are added for each process.

    Anonymous memory belongs to one process. It does not include libraries, which the kernel keeps only once.
    """
    resident = anonymous = 0
    for process in processes:
        lines = _read(process, "smaps_rollup").splitlines()
        if not lines:
            continue
        sizes = {name: size.split()[0] for name, _, size in (line.partition(":") for line in lines[1:])}
        resident += int(sizes["Rss"]) << 10
        anonymous += int(sizes["Anonymous"]) << 10
    return resident / MB, anonymous / MB


def _fields(process: int) -> list[str]:
    """Returns the fields of /proc/PID/stat behind the process's name; none if the process has just ended."""
    return _read(process, "stat").rpartition(")")[2].split()


def _read(process: int, name: str) -> str:
    """Returns the text of a file of a process; empty if the process has just ended."""
    try:
        return Path(f"/proc/{process}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
