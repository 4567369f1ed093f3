"""Measures the energy of the whole machine while a rival computes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.common.rows import measured
from split_infer_ros.telemetry.power import MeanPower, measures_power, total_watts
from split_infer_ros.telemetry.sensors import Sensors

FIGURE = "joules_per_image"
NO_ENERGY = "not measured: no sensor of power or energy answers; the command doctor says why"
PERIOD_S = 0.05  # between two readings


class EnergyMeter:
    """Measures the energy of one turn after another.

    Whatever else runs on the machine counts, too. So does a turn's warm-up.

    Args:
        sensors: the sensors of the machine; None: they are looked for.

    Attributes:
        joules: the energy of the latest turn; NaN if no sensor measured it.
    """

    def __init__(self, sensors: Sensors | None = None) -> None:
        self._sensors = Sensors.find() if sensors is None else sensors
        self._answers = measures_power(self._sensors.read())
        self.joules = math.nan

    @contextmanager
    def around(self, usage: AbstractContextManager[None]) -> Iterator[None]:
        """Measures what runs in the ``with`` block, inside another context."""
        if not self._answers:
            with usage:
                yield
            return
        power, ending = MeanPower(), threading.Event()
        reader = threading.Thread(target=self._read, args=(power, ending), name="energy")
        with usage:
            self._add(power)
            begin = time.monotonic()
            reader.start()
            try:
                yield
            finally:
                ending.set()
                reader.join()
            self._add(power)
            seconds = time.monotonic() - begin
        self.joules = total_watts(power.take()) * seconds

    def _read(self, power: MeanPower, ending: threading.Event) -> None:
        while not ending.wait(PERIOD_S):
            self._add(power)

    def _add(self, power: MeanPower) -> None:
        power.add(self._sensors.read(), time.monotonic())


def energy_row(samples: Sequence[float]) -> Mapping[str, Any]:
    """Returns the part of a row that tells the energy of an image, or why there is none.

    Args:
        samples: joules for each image, turn by turn.
    """
    found = [sample for sample in samples if math.isfinite(sample)]
    return measured(joules_per_image=found) if found else {"energy": NO_ENERGY}
