"""Gives freed memory back to the system."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Makes the C library give back the freed memory that it keeps. Libraries other than glibc may do nothing."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
