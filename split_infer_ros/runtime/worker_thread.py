"""A thread that works through a queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Work = TypeVar("Work")


class WorkerThread(Generic[Work]):
    """Processes pieces of work in order, on a thread of its own.

    The queue has no bound of its own: each piece of work holds a slot of a pool, which bounds how many can wait.

    Args:
        name: of the thread.
        process: is called with each piece of work. It handles its own errors: an exception ends the thread.
        set_up: is called first on the new thread.
    """

    def __init__(self, name: str, process: Callable[[Work], None], set_up: Callable[[], None]) -> None:
        self._name = name
        self._process = process
        self._set_up = set_up
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return self._queue.qsize()

    def start(self) -> None:
        """Starts the thread. A stopped thread can be started again."""
        self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Appends a piece of work, from any thread; never waits."""
        self._queue.put(work)

    def stop(self) -> None:
        """Waits until all work in the queue is processed, then ends the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _loop(self) -> None:
        self._set_up()
        while (work := self._queue.get()) is not None:
            self._process(work)
            del work  # frees its memory while the queue is empty
