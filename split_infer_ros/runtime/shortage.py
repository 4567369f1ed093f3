"""What is said of memory that ran out: the size that was asked for, and what is free. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

_ASKED = re.compile(r"tried to allocate ([\d.]+) ?(\w+)", re.IGNORECASE)
_FREE = re.compile(r"of which ([\d.]+) ?(\w+) is free")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def shortage(asked: float, free: float, where: str) -> str:
    """Returns a clause on memory that ran out.

    Args:
        asked: bytes that were asked for.
        free: bytes that are free.
        where: the memory's name, such as ``the host``.
    """
    return f"{asked:,.0f} bytes were asked for, and {where} has {free:,.0f} free"


def in_short(error: Exception) -> str:
    """Returns the error's first line, or ``shortage`` where torch says with it that memory ran out.

    Of a GPU, torch tells both sizes, to two decimals of their units. Of the host, it tells what was asked for.
    """
    text = str(error).partition("\n")[0]
    asked, free = _bytes(_ASKED.search(text)), _bytes(_FREE.search(text))
    if asked is None:
        return text
    return shortage(asked, host_bytes_free(), "the host") if free is None else shortage(asked, free, "the GPU")


def host_bytes_free() -> int:
    """Returns how many bytes of the host's memory can be had without taking others' away."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def _bytes(found: re.Match[str] | None) -> float | None:
    return None if found is None or found[2] not in _UNITS else float(found[1]) * _UNITS[found[2]]
