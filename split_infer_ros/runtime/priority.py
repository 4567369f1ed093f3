"""Lets threads that compute give way to threads that read images, hand batches over and publish results.

A batch takes milliseconds, a message takes microseconds. If all cores compute, a thread with a message would wait for
as long as a batch takes. The same holds for other processes of the machine.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

HEAD, BACKBONE = 4, 6  # added to the nice value; the head goes first because its frames are older


def give_way(by: int) -> None:
    """Raises the nice value of the calling thread above that of the process. Threads that it starts inherit the value.

    Only Linux has a value for each thread. On other systems, nothing changes.

    Args:
        by: the difference to the value of the process. Repeated calls and inherited values do not add up. The most
            that Linux allows is a nice value of 19.
    """
    if not hasattr(os, "setpriority") or not Path("/proc/self/task").is_dir():
        return
    with suppress(OSError):
        usual = os.getpriority(os.PRIO_PROCESS, os.getpid())  # the value of the first thread, which never gives way
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), usual + by)


def give_way_to_all(pid: int) -> None:
    """Lets a process compute only while no other process needs the core, and lets it be ended first if memory is short.

    This holds for all threads that it starts from now on. Only Linux can do that. A nice value would not do. Where the
    system groups processes by session, it counts within a session alone. And a running thread with the highest nice
    value still delays others by milliseconds.

    Args:
        pid: the process, which has a session of its own.
    """
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
            Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
            Path(f"/proc/{pid}/autogroup").write_text("19")  # its session's share; missing if sessions are not grouped
