"""How a process ends that can do nothing more: in order if that is soon done, else as it is."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import NoReturn

ORDERLY_S = 1.5  # from the first word of it; the process is gone within 2 s
FLUSH_S = 0.2


class Ending:
    """The end of this process, with an exit code of its own.

    Args:
        code: the exit code.
    """

    def __init__(self, code: int) -> None:
        self._code = code
        self._lock = threading.Lock()
        self.begun = False

    def begin(self) -> None:
        """Has the process end within ``ORDERLY_S``, whatever its threads wait for; may be called on any thread."""
        with self._lock:
            if self.begun:
                return
            self.begun = True
        threading.Thread(target=self._end_in_time, name="ending", daemon=True).start()

    @staticmethod
    def interrupt() -> None:
        """Has the main thread end the nodes in order, as SIGTERM does; may be called on any thread."""
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGTERM)

    def now(self) -> NoReturn:
        """End with what was printed, and without Python's own end."""
        flushing = threading.Thread(target=_flush, daemon=True)  # whoever reads it may have stopped to
        flushing.start()
        flushing.join(FLUSH_S)
        os._exit(self._code)

    def _end_in_time(self) -> None:
        time.sleep(ORDERLY_S)
        self.now()


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
