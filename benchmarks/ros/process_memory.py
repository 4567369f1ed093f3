"""Measures the memory that processes hold together. What they share with each other counts once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks.common.usage import MB

MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)")  # the first line about a mapping, with its file


def memory_mb(processes: Iterable[int]) -> float:
    """Returns the memory in RAM that processes hold together, in MB, as if no others ran.

    Memory that belongs to one process is added. Memory of a file, such as a library or shared memory, counts once: as
    much as the process has that has the most of it. So it does not matter which other processes use the same file.

    Args:
        processes: the ids of the processes.
    """
    private, files = 0, dict[str, int]()
    for process in processes:
        own, shared = of_process(Path(f"/proc/{process}/smaps").read_text())
        private += own
        for file, size in shared.items():
            files[file] = max(size, files.get(file, 0))
    return (private + sum(files.values())) / MB


def of_process(smaps: str) -> tuple[int, dict[str, int]]:
    """Returns the bytes in RAM that belong to a process alone, and those of each file that it has mapped.

    Args:
        smaps: the text of the process's file ``smaps`` in /proc.
    """
    private, files, file, resident = 0, dict[str, int](), "", 0
    for line in smaps.splitlines():
        if found := MAPPING.fullmatch(line):
            file = found[1]
            continue
        name, _, value = line.partition(":")
        if name == "Rss":
            resident = int(value.split()[0]) << 10
        elif name == "Anonymous":  # comes after Rss; a changed page of a file belongs to the process, too
            anonymous = int(value.split()[0]) << 10
            private += anonymous
            if resident > anonymous:
                files[file] = files.get(file, 0) + resident - anonymous
    return private, files
