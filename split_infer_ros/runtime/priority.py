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

_given = threading.local()  # by: what the thread has added to its nice value


def give_way(by: int) -> None:
    """Adds to the calling thread's nice value, and so to those of the threads that it starts; 19 is the most.

    Linux alone has a value for each thread. Elsewhere nothing changes.

    Args:
        by: so much in all, however often this is called.
    """
    if not hasattr(os, "setpriority") or not Path("/proc/self/task").is_dir():
        return
    thread = threading.get_native_id()
    with suppress(OSError):
        usual = os.getpriority(os.PRIO_PROCESS, thread) - getattr(_given, "by", 0)
        os.setpriority(os.PRIO_PROCESS, thread, usual + by)
        _given.by = by
