"""How many cores a thread's operations may use.

Each thread that computes on several cores has a team of helpers. Once there are more helpers than cores, OpenMP puts
all of them to sleep after every operation; waking them takes as long as many an operation, and they may wake on a core
that another has: a network of fifty layers then takes half as long again. So the stage with the most work has the one
team, and every other thread computes alone; the main thread too, from the first import on, so that no module makes a
large tensor as it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")

ALL = torch.get_num_threads()


def all_cores() -> int:
    """How many torch was given."""
    return ALL


def use_all_cores() -> None:
    """Operations of this thread use all cores that torch was given."""
    use_cores(ALL)


def use_one_core() -> None:
    """Operations of this thread stay on it."""
    use_cores(1)


def use_cores(count: int) -> None:
    """Operations of this thread use so many cores."""
    torch.get_num_threads()  # a thread's first use of torch takes over what another thread set last, so not later
    torch.set_num_threads(count)


def on_cores(count: int | None, work: Callable[[], Result]) -> Result:
    """Do it on a thread of its own, whose operations use so many cores; None: it does not matter how many.

    Layouts of convolutions and times depend on that. The thread's helpers end with it.
    """

    def run() -> Result:
        if count is not None:
            use_cores(count)
        return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def default_head_threads(backbone: torch.device, tuned: int = 0) -> int:
    """Cores for the head's half: all where a GPU has the backbone, else what tuning found, else one."""
    return ALL if backbone.type == "cuda" else tuned or 1
