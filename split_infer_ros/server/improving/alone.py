"""Lets one node of a machine improve a model at a time."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from split_infer_ros.runtime.cache import cache_folder

RETRY_S = 0.5  # how often it is checked whether a search can begin


@contextmanager
def alone(is_over: Callable[[], bool], ending: threading.Event) -> Iterator[None]:
    """Waits until no other node of this machine improves a model, and keeps others waiting during the block.

    If the search is over before, the block runs without waiting further.

    Args:
        is_over: says whether the search is over.
        ending: is set when the wait should end at once.
    """
    path: Path = cache_folder() / "improving.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        while not is_over():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                ending.wait(RETRY_S)
        yield
