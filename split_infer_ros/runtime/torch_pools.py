"""torch's memory pools, and the moment at which one may be destroyed.

A pool that is destroyed while any thread allocates from a pool, or records a graph, makes torch end the process. So a
pool that nobody needs any more waits until nobody does either.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LOCK = threading.Lock()
_UNNEEDED: deque[list[Any]] = deque()  # pools to destroy, each alone in a list, which nothing else refers to
_num_users = 0  # threads that allocate from a pool, and recordings


class TorchPool:
    """A memory pool of torch. It is destroyed at the first good moment after this object goes.

    Args:
        make: returns a new ``torch.cuda.MemPool``, to which nobody else refers.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._holder = [make()]
        weakref.finalize(self, _destroy_later, self._holder).atexit = False

    @property
    def pool(self) -> Any:
        """The pool. The caller keeps it no longer than this object."""
        return self._holder[0]

    @property
    def id(self) -> Any:
        """torch's token of the pool."""
        return self.pool.id


@contextmanager
def keeping_pools() -> Iterator[None]:
    """Keeps every thread from destroying a pool inside the block."""
    global _num_users
    with _LOCK:
        _num_users += 1
    try:
        yield
    finally:
        with _LOCK:
            _num_users -= 1
            _destroy_unneeded()


def _destroy_later(holder: list[Any]) -> None:
    """Has a pool destroyed now or when the last ``keeping_pools`` ends.

    A finalizer calls this. It can run on a thread that holds the lock, so it does not wait for it.
    """
    _UNNEEDED.append(holder)
    if _LOCK.acquire(blocking=False):
        try:
            _destroy_unneeded()
        finally:
            _LOCK.release()


def _destroy_unneeded() -> None:
    """Destroys what nobody needs, unless there are users (lock held)."""
    while _UNNEEDED and not _num_users:
        _UNNEEDED.popleft().clear()
