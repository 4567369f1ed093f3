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

    Without a bound, there is no thread, and no sensor is looked for.

    Args:
        bound_c: returns the highest temperature that is not hot, in C; 0: there is no bound. It must take no lock.
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
        self._guard = threading.Lock()  # guards the thread's start and end
        self.heat = Heat()

    def start(self) -> None:
        """Begins to read if there is a bound, until there is none. May be called again."""
        with self._guard:
            if self._thread is None and self._bound_c():
                self._ending = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._ending,), name="heat", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Reads no more. The latest heat stays."""
        with self._guard:
            thread, self._thread = self._thread, None
            self._ending.set()
        if thread is not None:
            thread.join(JOIN_S)

    def _run(self, ending: threading.Event) -> None:
        use_one_thread()
        while self._goes_on(ending):
            self._look(ending)
            ending.wait(PERIOD_S)

    def _goes_on(self, ending: threading.Event) -> bool:
        """Returns whether the thread goes on. If there is no bound any more, it ends, and nothing is hot."""
        with self._guard:
            if ending.is_set():
                return False
            if self._bound_c():
                return True
            self._thread = None
        self._take(Heat())
        return False

    def _look(self, ending: threading.Event) -> None:
        try:
            self._sensors = self._sensors or Sensors.find()
            readings = self._sensors.read()
        except Exception:  # a vendor's library may raise anything, and heat decides nothing then
            readings = []
        if not ending.is_set():  # a hanging sensor may have answered after the end
            self._take(self.heat.after(readings, self._bound_c(), time.monotonic()))

    def _take(self, heat: Heat) -> None:
        before, self.heat = self.heat, heat
        self._note(before, heat)
