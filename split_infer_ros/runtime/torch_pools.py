"""torch's memory pools, and what must wait until no thread uses one.

A pool that is destroyed while any thread allocates from a pool, or records a graph, makes torch end the process. And
until then torch's cache gives nothing back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from split_infer_ros.runtime.deferred_calls import DeferredCalls

_CALLS = DeferredCalls()


class TorchPool:
    """A memory pool of torch. It is destroyed at the first good moment after this object goes.

    Args:
        make: returns a new ``torch.cuda.MemPool``, to which nobody else refers.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._holder = [make()]  # nothing else refers to the pool
        weakref.finalize(self, once_unused, self._holder.clear).atexit = False

    @property
    def pool(self) -> Any:
        """The pool. The caller keeps it no longer than this object."""
        return self._holder[0]

    @property
    def id(self) -> Any:
        """torch's token of the pool."""
        return self.pool.id


def keeping_pools() -> AbstractContextManager[None]:
    """Returns a block in which no thread destroys a pool. It is for who allocates from a pool, or records a graph."""
    return _CALLS.holding()


def once_unused(call: Callable[[], object]) -> None:
    """Makes a call now, or has the thread make it that is the last to leave ``keeping_pools``. It must not raise."""
    _CALLS.give(call)
