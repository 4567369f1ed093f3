"""A thread that works through a queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Work = TypeVar("Work")


class WorkerThread(Generic[Work]):
    """Processes pieces of work in order, on a thread of its own.

    The queue has no limit of its own. Each piece of work holds a slot of a pool, and that limits how many can wait.

    Args:
        name: the name of the thread.
        process: called with each piece of work. It must handle its errors, because an exception ends the thread.
        set_up: called first on the new thread.
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
        self._thread = threading.Thread(target=self._loop, args=(self._queue,), name=self._name, daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Appends a piece of work, from any thread; never waits."""
        self._queue.put(work)

    def stop(self, timeout_s: float | None = None) -> bool:
        """Waits until all work in the queue is processed, then ends the thread.

        Args:
            timeout_s: seconds to wait; None: no limit. A thread that takes longer keeps its queue and ends by itself,
                if ever. ``start`` then begins with an empty queue.

        Returns:
            Whether the thread has ended.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._queue.put(None)
        if thread is threading.current_thread():  # it ends once its present work is done
            return False
        thread.join(timeout_s)
        if thread.is_alive():
            self._queue = SimpleQueue()
            return False
        return True

    def _loop(self, queue: SimpleQueue[Work | None]) -> None:
        self._set_up()
        while (work := queue.get()) is not None:
            self._process(work)
            del work  # frees its memory while the queue is empty
