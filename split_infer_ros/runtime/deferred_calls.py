"""Calls that must wait while any thread is inside a certain block, such as frees during a recording."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class DeferredCalls:
    """Makes calls at once if no thread is inside ``holding``, and otherwise when the last such block ends.

    Finalizers use ``give``. A finalizer can run on a thread that holds the lock, so ``give`` never waits for the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], object]] = deque()
        self._num_blocks = 0

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Makes all calls wait while the block runs. The block begins once no call is running."""
        with self._lock:
            self._num_blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_blocks -= 1
                self._make_calls()
            self._try_calls()

    def give(self, call: Callable[[], object]) -> None:
        """Makes a call now, or leaves it to the thread that ends the last ``holding`` block. It must not raise."""
        self._waiting.append(call)
        self._try_calls()

    def _try_calls(self) -> None:
        """Makes the calls, unless another thread has the lock. That thread looks for calls again afterwards."""
        while self._waiting and not self._num_blocks and self._lock.acquire(blocking=False):
            try:
                self._make_calls()
            finally:
                self._lock.release()

    def _make_calls(self) -> None:
        """Makes the calls, unless there are blocks (lock held)."""
        while self._waiting and not self._num_blocks:
            self._waiting.popleft()()
