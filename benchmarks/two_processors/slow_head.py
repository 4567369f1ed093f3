"""Slows the head's processor down, to the ratio of an embedded board's CPU to its GPU.

Competitors are busy processes on the host's processor. They have the nice value of the head's thread. With N of them,
the head gets 1/(N+1) of its processor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from benchmarks.common.child_process import to_run
from split_infer_ros.runtime.cores import Cores
from split_infer_ros.runtime.priority import HEAD, give_way

NUM_COMPETITORS = (3, 7)

Result = TypeVar("Result")


@contextmanager
def competitors(count: int, cores: Cores) -> Iterator[None]:
    """Keeps ``count`` competitors busy on these cores during a ``with`` block."""
    nice = os.getpriority(os.PRIO_PROCESS, os.getpid()) + HEAD
    command = [sys.executable, *to_run("benchmarks.two_processors.competitor"), str(os.getpid()), str(nice)]
    processes: list[subprocess.Popen[str]] = []
    try:
        with cores.bound():  # a process inherits the cores of the thread that starts it
            for _ in range(count):
                processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it begins
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def as_head(work: Callable[[], Result]) -> Result:
    """Runs ``work`` on a thread with the head's nice value, and returns its result.

    All threads that it starts inherit the value. So the host's other work and the profile's timer compete like the
    head, although the package gives only the head's thread that value.
    """
    with ThreadPoolExecutor(1, initializer=give_way, initargs=(HEAD,)) as thread:
        return thread.submit(work).result()
