"""Calls that must not be made while any thread is inside a certain block, such as frees beside a recording."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class DeferredCalls:
    """Makes calls while no thread is inside ``holding``: at once, or when the last such block ends.

    Finalizers give calls. One can run on a thread that holds the lock, so ``give`` never waits for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], object]] = deque()
        self._num_blocks = 0

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keeps every thread from making the calls inside the block, which begins when calls under way are over."""
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
        """Makes a call now, or has the thread make it that leaves the last block. The call must not raise."""
        self._waiting.append(call)
        self._try_calls()

    def _try_calls(self) -> None:
        """Makes the calls, unless another thread has the lock. That one looks for calls again after it."""
        while self._waiting and not self._num_blocks and self._lock.acquire(blocking=False):
            try:
                self._make_calls()
            finally:
                self._lock.release()

    def _make_calls(self) -> None:
        """Makes the calls, unless there are blocks (lock held)."""
        while self._waiting and not self._num_blocks:
            self._waiting.popleft()()
