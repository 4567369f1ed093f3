"""Adds up what the power sensors say, and averages it over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from split_infer_ros.telemetry.sensors import WATT, Reading

WHOLE_BOARD = ("VDD_IN", "POM_5V_IN", "5V_IN")  # a Jetson's rail that feeds the others, by the names of several boards


def total_watts(readings: Sequence[Reading]) -> float:
    """The power of all that the sensors cover; NaN without a power sensor.

    On a board with a sensor at its input that is the input's power. Otherwise it is the sum of all GPUs and rails.
    """
    watts = {reading.name: reading.value for reading in readings if reading.unit == WATT}
    whole = [value for name, value in watts.items() if name in WHOLE_BOARD]
    return sum(whole or watts.values()) if watts else math.nan


class MeanPower:
    """Averages power over the time between two looks: the readings are joined by straight lines."""

    def __init__(self) -> None:
        self._latest = math.nan, math.nan  # when, and watts
        self._joules = self._seconds = 0.0

    def add(self, watts: float, now: float) -> None:
        """Takes a reading at ``now`` (seconds); with NaN, the time around it is left out."""
        before, latest = self._latest
        joules = (latest + watts) / 2 * (now - before)
        if not math.isnan(joules):
            self._joules += joules
            self._seconds += now - before
        self._latest = now, watts

    def take(self) -> float:
        """Watts since the last look; NaN without two readings in a row."""
        joules, seconds, self._joules, self._seconds = self._joules, self._seconds, 0.0, 0.0
        return joules / seconds if seconds else math.nan
