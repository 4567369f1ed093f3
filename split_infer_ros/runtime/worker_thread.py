"""One stage of the pipeline: a thread with a queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Work = TypeVar("Work")


class Stage(Generic[Work]):
    """Does its work piece by piece, in order, on a thread of its own.

    The queue needs no bound of its own: each piece holds a slot of the ring, so at most so many wait here.

    Args:
        name: of the thread.
        do: the work; what it raises ends the stage, so it settles errors itself.
        set_up: runs first on the new thread.
    """

    def __init__(self, name: str, do: Callable[[Work], None], set_up: Callable[[], None]) -> None:
        self._name = name
        self._do = do
        self._set_up = set_up
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return self._queue.qsize()

    def start(self) -> None:
        """Begin, until stop; may be started again."""
        self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Work comes in, from any thread; never waits."""
        self._queue.put(work)

    def stop(self) -> None:
        """Finish all that came in, then end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _loop(self) -> None:
        self._set_up()
        while (work := self._queue.get()) is not None:
            self._do(work)
            del work  # its memory is not held while nothing comes
