"""Lets tests compute with one thread.

Equal bits need equal numbers of threads, and a busy machine delays a single thread least.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch use one thread inside the ``with`` block. Does nothing if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
