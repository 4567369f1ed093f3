"""Threads that compute give way to threads that read images, hand batches over and publish results.

A batch takes milliseconds, a message takes microseconds. Where all cores compute, the thread of a
message would wait for its turn as long as a batch takes. This holds for other processes of the machine as well.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

HEAD, BACKBONE = 4, 6  # added to the nice value; what the head finishes is older


def give_way(by: int) -> None:
    """Raises the calling thread's nice value above the process's, and so those of the threads that it starts.

    Linux alone has a value for each thread. Elsewhere nothing changes.

    Args:
        by: so much in all, however often this is called, and whatever the thread has inherited; 19 is the most.
    """
    if not hasattr(os, "setpriority") or not Path("/proc/self/task").is_dir():
        return
    with suppress(OSError):
        usual = os.getpriority(os.PRIO_PROCESS, os.getpid())  # of the first thread, which gives way to none
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), usual + by)
