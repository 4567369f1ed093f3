"""Sets how many threads the operations of a Python thread use.

Each Python thread that computes with several threads has a team of OpenMP threads. If the teams have more threads than
there are cores, OpenMP puts all of them to sleep after every operation. Waking them takes as long as many operations
do, and they may wake on a core that another thread uses. A network of fifty layers then takes half as long again.

Therefore only the stage with the most work has a team, and every other thread computes alone. The main thread computes
alone from the first import on, so no module makes a large tensor while it is imported.

This module does not import torch. While a process has not imported torch, the module only notes what a thread asks for,
and other engines use that. Once torch is imported, each call of ``use_threads`` also sets torch's number for the
calling thread. Code that builds torch models calls ``tell_torch`` first. So torch gets the number that the thread asked
for before torch was imported.

Engines other than torch have threads of their own. A team of torch keeps its cores busy for some milliseconds after
each operation, so that its threads need not be woken. An engine's threads would have to wait meanwhile. Therefore torch
computes with one thread on a thread that gives its network to another engine.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from split_infer_ros.runtime.cores import ANY_CORE, Cores, has_other_cores, num_physical_cores
from split_infer_ros.runtime.device import Device

Result = TypeVar("Result")

VARIABLE = "OMP_NUM_THREADS"  # may list numbers for nested teams: "4,2"


def threads_at_start() -> int:
    """Returns how many threads the environment gives this process. torch starts with the same number.

    It is the number of cores, or the first number in ``OMP_NUM_THREADS`` if that is smaller.
    """
    return _threads_on(num_physical_cores(), os.environ.get(VARIABLE, ""))


def _threads_on(count: int, variable: str) -> int:
    """Returns the number of threads on ``count`` cores, with this value of the variable."""
    asked = re.match(r"\s*\+?0*([1-9]\d*)\s*(,|$)", variable)
    return min(int(asked[1]), count) if asked else count


_MAX_THREADS, _VALUE = threads_at_start(), os.environ.get(VARIABLE, "")  # before anything changes the variable
# torch_threads, num_threads: how many threads torch and another engine use for the calling thread
# num_lanes: see engine_lanes
_engine = threading.local()


def max_threads() -> int:
    """Returns how many threads the calling thread's operations may use at most.

    It is the number that this process was given when it started. A thread that is bound to other cores has one for each
    of them, or as many as ``OMP_NUM_THREADS`` said if that is fewer.
    """
    return _threads_on(num_physical_cores(), _VALUE) if has_other_cores() else _MAX_THREADS


def fewer_than_all(num_threads: int) -> int:
    """Returns a number of threads, or 0 if it is all that the calling thread may use, or more."""
    return num_threads if num_threads < max_threads() else 0


def use_all_threads() -> None:
    """Lets operations of the calling thread use as many threads as they may."""
    use_threads(max_threads())


def use_one_thread() -> None:
    """Makes operations of the calling thread run on that thread alone."""
    use_threads(1)


def use_threads(num_threads: int, num_lanes: int = 1) -> None:
    """Lets operations of the calling thread use ``num_threads`` threads of torch or of another engine.

    Args:
        num_threads: number of threads, at least 1.
        num_lanes: how many threads, this one included, compute at the same time with ``num_threads`` threads each.
    """
    _engine.torch_threads = _engine.num_threads = num_threads
    _engine.num_lanes = num_lanes
    tell_torch()


def tell_torch() -> None:
    """Sets torch's number of threads to the one that the calling thread asked for last, if torch is imported."""
    torch, num_threads = _loaded_torch(), getattr(_engine, "torch_threads", 0)
    if torch is not None and num_threads:
        torch.get_num_threads()  # a thread's first call takes over another thread's number, so it must come first
        torch.set_num_threads(num_threads)


def use_engine_threads(num_threads: int, num_lanes: int = 1) -> None:
    """Lets engines other than torch use ``num_threads`` threads for the calling thread. torch uses one thread there.

    Args:
        num_threads: number of threads; 0: ``max_threads()``.
        num_lanes: how many threads, this one included, compute at the same time with ``num_threads`` threads each.
    """
    use_one_thread()
    _engine.num_threads, _engine.num_lanes = num_threads or max_threads(), num_lanes


def engine_threads() -> int:
    """Returns how many threads an engine uses for the calling thread.

    A thread that asked for no number gets torch's number. If torch is not imported, it gets ``max_threads()``.
    """
    found: int = getattr(_engine, "num_threads", 0)
    if found:
        return found
    torch = _loaded_torch()
    return max_threads() if torch is None else int(torch.get_num_threads())


def engine_lanes() -> int:
    """Returns how many threads, the calling one included, give networks to an engine at the same time."""
    found: int = getattr(_engine, "num_lanes", 1)
    return found


def run_with_threads(num_threads: int | None, work: Callable[[], Result]) -> Result:
    """Runs ``work`` on a new thread and returns its result. The OpenMP threads of the new thread end with it.

    Use it for work that depends on the number of threads: measured times, or the layouts that convolutions choose.

    Args:
        num_threads: how many threads the operations of the new thread use; None: the default of a new thread.
        work: the function to call.
    """

    def run() -> Result:
        if num_threads is not None:
            use_threads(num_threads)
        return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def default_head_threads(backbone_device: Device, tuned: int = 0, cores: Cores = ANY_CORE) -> int:
    """Returns the number of threads for the head partition when the user sets none.

    It is all threads if the backbone runs on a GPU, or if the head has cores of its own. Otherwise it is what tuning
    found, or one.

    Args:
        backbone_device: where the backbone partition runs.
        tuned: the number that tuning found; 0 if it found none.
        cores: the head's own cores, if it has any. If not, it may use those of the calling thread.
    """
    with cores.bound():
        return max_threads() if cores or backbone_device.type == "cuda" else tuned or 1


def _loaded_torch() -> Any:
    """Returns torch; None if this process has not imported it, or not far enough to set threads."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "set_num_threads") else None
