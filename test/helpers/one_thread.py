"""Tests compute with one thread: equal bits need equal threads, and a busy machine delays one thread least."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch use one thread meanwhile, where it is installed."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
