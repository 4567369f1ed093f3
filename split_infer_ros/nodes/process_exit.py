"""Ends a process that has lost its GPU. The nodes close in order if that is quick; else the process ends without it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import NoReturn

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
        """Ends the process within ``ORDERLY_S``, whatever its threads wait for. Any thread may call this."""
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


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
