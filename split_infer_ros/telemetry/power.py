"""Adds up the readings of power sensors, and averages power over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from split_infer_ros.telemetry.sensors import Reading, Unit

WHOLE_BOARD = ("VDD_IN", "POM_5V_IN", "5V_IN")  # the rail that feeds all others; its name differs by Jetson board


def total_watts(readings: Sequence[Reading]) -> float:
    """Returns the power of everything that the sensors cover; NaN without a power sensor.

    If the board has a sensor at its input, the total is that sensor's power. Otherwise the total is the sum over all
    GPUs and rails.
    """
    watts = {reading.name: reading.value for reading in readings if reading.unit is Unit.WATT}
    whole_board = [value for name, value in watts.items() if name in WHOLE_BOARD]
    return sum(whole_board or watts.values()) if watts else math.nan


class MeanPower:
    """Averages power since the last call of ``take``. Between two readings, power is taken to change linearly."""

    def __init__(self) -> None:
        self._latest_s = self._latest_watts = math.nan
        self._joules = self._seconds = 0.0

    def add(self, watts: float, now: float) -> None:
        """Adds a reading at ``now`` (seconds). The time before and after a NaN reading is left out."""
        seconds = now - self._latest_s
        joules = (self._latest_watts + watts) / 2 * seconds
        if not math.isnan(joules):
            self._joules += joules
            self._seconds += seconds
        self._latest_s, self._latest_watts = now, watts

    def take(self) -> float:
        """Returns the mean watts since the last call; NaN without two readings in a row."""
        mean = self._joules / self._seconds if self._seconds else math.nan
        self._joules = self._seconds = 0.0
        return mean
