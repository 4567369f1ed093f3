"""Messages about memory that ran out. They give the requested size and the free size. Does not import torch."""

from __future__ import annotations

import re
from pathlib import Path

_ASKED = re.compile(r"tried to allocate ([\d.]+) ?(\w+)", re.IGNORECASE)
_FREE = re.compile(r"of which ([\d.]+) ?(\w+) is free")
_SHORTAGE = re.compile("bad_?alloc|alloc|memory", re.IGNORECASE)
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def shortage(asked: float, free: float, where: str) -> str:
    """Returns a clause about memory that ran out.

    Args:
        asked: bytes that were asked for.
        free: bytes that are free.
        where: the memory's name, such as ``the host``.
    """
    return f"{asked:,.0f} bytes were asked for, and {where} has {free:,.0f} free"


def says_shortage(text: str) -> bool:
    """Returns whether a message is about memory that ran out."""
    return bool(_SHORTAGE.search(text))


def summarize_error(error: Exception) -> str:
    """Returns the error's first line. If the error says that memory ran out, returns ``shortage`` instead.

    For a GPU, torch reports both sizes, to two decimals of their units. For the host, it reports the requested size.
    """
    text = str(error).partition("\n")[0]
    asked, free = _bytes(_ASKED.search(text)), _bytes(_FREE.search(text))
    if asked is None:
        return text
    if free is None:
        return shortage(asked, host_bytes_free(), "the host")
    return shortage(asked, free, "the GPU")


def host_bytes_free() -> int:
    """Returns how many bytes of the host's memory are available (MemAvailable)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def _bytes(match: re.Match[str] | None) -> float | None:
    if match is None or match[2] not in _UNITS:
        return None
    return float(match[1]) * _UNITS[match[2]]
