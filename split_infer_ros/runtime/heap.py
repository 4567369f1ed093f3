"""Memory that was freed, back to the system."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Have the C library give back what it keeps of freed memory; where it knows no way, nothing happens."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)
