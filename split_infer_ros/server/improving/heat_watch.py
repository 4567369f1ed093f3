"""Reads the temperatures of the processors while models are served with a bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.telemetry.heat import Heat
from split_infer_ros.telemetry.sensors import Sensors

PERIOD_S = 2.0  # between two readings
JOIN_S = 1.0  # a thread that takes longer to end is left alone: a sensor may hang


class HeatWatch:
    """Holds the temperatures of the processors against a bound, on a thread of its own.

    Without a bound, it looks for no sensors.

    Args:
        bound_c: returns the highest temperature that is not hot, in C; 0: there is no bound.
        note: called after each look, with the heat before it and the present one. It must not raise.

    Attributes:
        heat: what the latest readings have shown. Any thread may read it.
    """

    def __init__(self, bound_c: Callable[[], float], note: Callable[[Heat, Heat], object]) -> None:
        self._bound_c = bound_c
        self._note = note
        self._sensors: Sensors | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self.heat = Heat()

    def start(self) -> None:
        """Begins to read. May be called again after ``stop``."""
        if self._thread is None:
            self._ending = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(self._ending,), name="heat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Reads no more. The latest heat stays."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join(JOIN_S)

    def _run(self, ending: threading.Event) -> None:
        use_one_thread()
        while not ending.is_set():
            self._look(ending)
            ending.wait(PERIOD_S)

    def _look(self, ending: threading.Event) -> None:
        before, bound_c = self.heat, self._bound_c()
        if bound_c and self._sensors is None:
            self._sensors = Sensors.find()
        readings = self._sensors.read() if bound_c and self._sensors is not None else []
        if not ending.is_set():  # a hanging sensor may have answered after the end
            self.heat = before.after(readings, bound_c, time.monotonic())
            self._note(before, self.heat)
