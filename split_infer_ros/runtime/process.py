"""Settings of a process that runs models. A process makes them before anything else.

A network frees each layer's output and allocates the next one, megabytes each time. By default, glibc gives such memory
back to the system at once. The next allocation gets new pages, which the kernel clears one by one. With batches of ten
images or more, this can take as long as the network itself. Arenas of threads cannot hold blocks of that size, so one
arena serves all threads.
"""

from __future__ import annotations

import ctypes
import os

from split_infer_ros.runtime.num_threads import use_one_thread

# options in glibc's malloc.h
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8

QUEUES_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
MAX_QUEUES = "32"


def prepare_process() -> None:
    """Prepares this process for a pipeline. Call it before threads start and before CUDA is used.

    Afterwards, the calling thread computes alone, the C library keeps freed memory for later allocations, and the GPU's
    streams do not share queues.
    """
    use_one_thread()  # models are loaded on this thread, which must not keep a team of threads
    keep_freed_memory()
    use_all_queues()


def use_all_queues() -> None:
    """Makes CUDA use all queues of the GPU for its streams, unless the user set a number."""
    # Streams that share a queue wait for each other. CUDA uses 8 queues by default, and one tenant has 7 streams. CUDA
    # reads the variable once, when its first call makes the context. So the variable is set at the process's start.
    os.environ.setdefault(QUEUES_VARIABLE, MAX_QUEUES)


def keep_freed_memory() -> bool:
    """Makes the C library keep freed memory, in one heap.

    Returns:
        Whether the library now keeps freed memory. False also if the user has settings of their own, in an environment
        variable ``MALLOC_...`` or ``GLIBC_TUNABLES``. The user's settings then stay.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = {M_ARENA_MAX: 1, M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1}
    return all(mallopt(option, value) for option, value in options.items())
