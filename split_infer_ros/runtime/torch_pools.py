"""torch's memory pools, and calls that must wait until no thread uses one.

If a pool is destroyed while any thread allocates from a pool or records a graph, torch ends the process. While a thread
does so, torch's cache also gives no memory back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from split_infer_ros.runtime.deferred_calls import DeferredCalls

_CALLS = DeferredCalls()


class TorchPool:
    """A memory pool of torch. Once this object is collected, the pool is destroyed as soon as no thread uses any pool.

    Args:
        make: returns a new ``torch.cuda.MemPool`` to which nothing else refers.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._holder = [make()]  # nothing else refers to the pool
        weakref.finalize(self, once_unused, self._holder.clear).atexit = False

    @property
    def pool(self) -> Any:
        """The pool. Callers must not keep it longer than this object."""
        return self._holder[0]

    @property
    def id(self) -> Any:
        """torch's token of the pool."""
        return self.pool.id


def keeping_pools() -> AbstractContextManager[None]:
    """Returns a context in which no thread destroys a pool. Use it to allocate from a pool or to record a graph."""
    return _CALLS.holding()


def once_unused(call: Callable[[], object]) -> None:
    """Makes a call now, or leaves it to the last thread that leaves ``keeping_pools``. The call must not raise."""
    _CALLS.give(call)
