"""How much memory this process has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_KIB = 1024


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a process. A number is 0 if the system does not tell it.

    Attributes:
        resident_bytes: what is in RAM, with files and shared memory that other processes may have as well.
        anonymous_bytes: the part of it that belongs to no file: the heap, stacks, and what was written to in private
            mappings. This is what the process costs the machine.
    """

    resident_bytes: int
    anonymous_bytes: int


def process_memory(status: Path = Path("/proc/self/status")) -> ProcessMemory:
    """Returns the memory that this process has now.

    Args:
        status: where Linux tells it. Unlike ``smaps_rollup``, it is read without looking at each page.
    """
    try:
        lines = status.read_text().splitlines()
    except OSError:
        lines = []
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    return ProcessMemory(*(_bytes(told.get(name, "")) for name in ("VmRSS", "RssAnon")))


def _bytes(text: str) -> int:
    """Returns the bytes of a text such as ``1234 kB``; 0 if it is none."""
    number, _, unit = text.strip().partition(" ")
    return int(number) * _KIB if number.isdigit() and unit == "kB" else 0
