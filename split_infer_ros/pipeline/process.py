"""What a process that computes on the CPU sets up before anything else.

A network frees each layer's output and asks for the next one's, megabytes a time. Unless told otherwise, glibc gives
such memory back at once and gets other pages, which the kernel clears one by one: from batches of some ten images on
that takes as long as many a network. Arenas of threads cannot hold blocks of that size at all, so one arena serves
all.
"""

from __future__ import annotations

import ctypes
import os

from split_infer_ros.split.cores import use_one_core

# of glibc's malloc.h
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8


def prepare_process() -> None:
    """Leave the cores to the stages, and keep freed memory for what comes next; before threads are started."""
    use_one_core()  # models are loaded on this thread, which must not keep helpers
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Have the C library keep what is freed, in one heap; False where it cannot, or the user has it otherwise.

    A setting of the user's own is any variable ``MALLOC_...`` or ``GLIBC_TUNABLES``.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(option, value) for option, value in ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1)))
