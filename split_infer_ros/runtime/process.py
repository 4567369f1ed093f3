"""What a process that runs models sets up before anything else.

A network frees each layer's output and asks for the next one's, megabytes a time. Unless told otherwise, glibc gives
such memory back at once and gets other pages, which the kernel clears one by one: from batches of some ten images on
that takes as long as many a network. Arenas of threads cannot hold blocks of that size at all, so one arena serves
all.
"""

from __future__ import annotations

import ctypes
import os

from split_infer_ros.runtime.num_threads import use_one_thread

# of glibc's malloc.h
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
MOST_QUEUES = "32"


def prepare_process() -> None:
    """Leave the cores to the stages, keep freed memory for what comes next, and keep the GPU's streams apart.

    Call it before threads are started, and before CUDA is used.
    """
    use_one_thread()  # models are loaded on this thread, which must not keep helpers
    keep_freed_memory()
    use_all_queues()


def use_all_queues() -> None:
    """Have CUDA spread its streams over all queues of the GPU, unless the user set how many."""
    # Streams that share a queue wait for each other. CUDA takes 8 queues by default, and one tenant has 7 streams. It
    # reads the variable once, when its first call makes the context. So this is set here, not where streams are made.
    os.environ.setdefault(QUEUES, MOST_QUEUES)


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
