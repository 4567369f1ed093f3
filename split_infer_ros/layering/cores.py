"""Work whose outcome depends on how many cores it may use: layouts of convolutions, and times."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


def on_cores(count: int | None, work: Callable[[], Result]) -> Result:
    """Do it on a thread of its own, whose operations use so many cores; None: it does not matter how many."""

    def run() -> Result:
        if count is not None:
            torch.get_num_threads()  # a thread's first use of torch takes over what another thread set last
            torch.set_num_threads(count)
        return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
