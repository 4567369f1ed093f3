"""Reads how much memory this process uses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_KIB = 1024


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a process. A number is 0 if the system does not report it.

    Attributes:
        resident_bytes: memory in RAM, including files and shared memory that other processes may also use.
        anonymous_bytes: the part of ``resident_bytes`` that belongs to no file: the heap, stacks, and written pages of
            private mappings. This is what the process costs the machine.
    """

    resident_bytes: int
    anonymous_bytes: int


def process_memory(status: Path = Path("/proc/self/status")) -> ProcessMemory:
    """Returns the memory that this process uses now.

    Args:
        status: the file in which Linux reports the memory. Reading it is quick. For ``smaps_rollup``, Linux would look
            at each page.
    """
    try:
        lines = status.read_text().splitlines()
    except OSError:
        lines = []
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    return ProcessMemory(*(_bytes(told.get(name, "")) for name in ("VmRSS", "RssAnon")))


def _bytes(text: str) -> int:
    """Returns the bytes that a text such as ``1234 kB`` states; 0 for any other text."""
    number, _, unit = text.strip().partition(" ")
    return int(number) * _KIB if number.isdigit() and unit == "kB" else 0
