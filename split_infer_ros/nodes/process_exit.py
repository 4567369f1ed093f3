"""What ends a process, other than a signal: the loss of its GPU, or a thread of this package that fails.

The nodes close in order if that is quick. Else the process ends while they still close.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn

from split_infer_ros.errors import error_sentence
from split_infer_ros.nodes.ros_text import TextLogger
from split_infer_ros.runtime.search_path import PACKAGE_FOLDER
from split_infer_ros.runtime.shortage import summarize_error

ORDERLY_S = 1.5  # how long the nodes may take to close; the process is gone within 2 s
FLUSH_S = 0.2


class ProcessExit:
    """Ends this process with a given exit code.

    Args:
        code: the exit code.

    Attributes:
        started: whether the exit has started.
    """

    def __init__(self, code: int) -> None:
        self._code = code
        self._lock = threading.Lock()
        self.started = False

    def start(self) -> None:
        """Makes the process end after ``ORDERLY_S`` seconds at most, whatever its threads wait for.

        Returns at once. Any thread may call this.
        """
        with self._lock:
            if self.started:
                return
            self.started = True
        threading.Thread(target=self._end_in_time, name="process exit", daemon=True).start()

    @staticmethod
    def interrupt_main_thread() -> None:
        """Makes the main thread close the nodes in order, as SIGTERM does. Any thread may call this."""
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGTERM)

    def exit_now(self) -> NoReturn:
        """Flushes the output and ends the process without Python's own clean-up."""
        flushing = threading.Thread(target=_flush, daemon=True)  # a flush hangs if nobody reads the pipe
        flushing.start()
        flushing.join(FLUSH_S)
        os._exit(self._code)

    def _end_in_time(self) -> None:
        time.sleep(ORDERLY_S)
        self.exit_now()


class DeviceLoss:
    """Says whether this process can no longer use the GPU. Logs and reports the loss, and ends the process.

    Args:
        logger: logs the loss.
        report: called once after the loss, on any thread; tells other nodes of it.

    Attributes:
        sentence: why this process can no longer use the GPU; empty while it can.
    """

    def __init__(self, logger: TextLogger, report: Callable[[], None]) -> None:
        self.sentence = ""
        self._logger = logger
        self._report = report
        self._on_loss: Callable[[], None] = lambda: None
        self._end_process: Callable[[], None] = lambda: None

    def set_handlers(self, on_loss: Callable[[], None], end_process: Callable[[], None]) -> None:
        """Registers what happens once this process can no longer use the GPU.

        Args:
            on_loss: called before the loss is reported.
            end_process: called after the loss was reported.
        """
        self._on_loss, self._end_process = on_loss, end_process

    def declare(self, error: Exception) -> None:
        """Logs and reports that this process can no longer use the GPU. Then ends the process.

        Only the first call does this. Any thread may call it.

        Args:
            error: the error that shows the loss.
        """
        if self.sentence:
            return
        self.sentence = f"The GPU is lost to this process, which ends ({summarize_error(error)})."
        self._logger.fatal(self.sentence)
        self._on_loss()
        try:
            self._report()  # before the nodes that pass the report on are closed
        finally:
            self._end_process()


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


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
