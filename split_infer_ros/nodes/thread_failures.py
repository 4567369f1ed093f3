"""Ends the process with a reason when a thread of this package fails. No other thread would do its work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from split_infer_ros.errors import error_sentence
from split_infer_ros.runtime.search_path import PACKAGE_FOLDER


class ThreadFailures:
    """Watches for exceptions that end threads of this package.

    Attributes:
        first: a sentence about the first failure; empty while there is none.
    """

    def __init__(self) -> None:
        self.first = ""

    @contextmanager
    def watch(self, end_process: Callable[[], None]) -> Iterator[None]:
        """Watches all threads while the context is open.

        Args:
            end_process: called on the failed thread, after the first failure.
        """
        before = threading.excepthook

        def note(failure: threading.ExceptHookArgs) -> None:
            before(failure)
            if self.first or failure.exc_value is None or not _is_ours(failure.exc_traceback):
                return
            name = failure.thread.name if failure.thread is not None else "unknown"
            self.first = f"The thread '{name}' has failed: {error_sentence(failure.exc_value)}"
            end_process()

        threading.excepthook = note
        try:
            yield
        finally:
            threading.excepthook = before


def _is_ours(trace: TracebackType | None) -> bool:
    """Returns whether an exception passed through this package's code. Libraries have threads of their own."""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(f"{PACKAGE_FOLDER}/split_infer_ros/"):
            return True
        trace = trace.tb_next
    return False
