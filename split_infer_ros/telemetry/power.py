"""Averages power over time, and adds up the power of a machine. It has no clock: callers pass the times."""

from __future__ import annotations

import math
from collections.abc import Sequence

from split_infer_ros.telemetry.sensors import Reading, SensorUnit, is_believed

# Names of what feeds all else: the rail at the input of several Jetson boards, and the platform's counter of Intel.
WHOLE_BOARD = ("VDD_IN", "POM_5V_IN", "5V_IN", "psys")


def measures_power(readings: Sequence[Reading]) -> bool:
    """Returns whether a sensor of power or energy is among the readings."""
    return any(reading.unit is not SensorUnit.CELSIUS for reading in readings)


def total_watts(readings: Sequence[Reading]) -> float:
    """Returns the power of everything that the sensors cover; NaN without a reading in watts.

    It is the sum of all GPUs, packages and rails. A sensor of the whole board covers them, so the larger of both is the
    total: some boards have such a sensor that shows 0.
    """
    watts = {reading.name: reading.value for reading in readings if reading.unit is SensorUnit.WATT}
    parts = sum(value for name, value in watts.items() if name not in WHOLE_BOARD)
    return max(parts, sum(watts.values()) - parts) if watts else math.nan


class MeanPower:
    """Averages the power of each sensor over the time since the last call of ``take``.

    A counter of joules gives the exact mean. Power in watts is assumed to change linearly between two readings.
    """

    def __init__(self) -> None:
        self._latest: dict[str, Reading] = {}
        self._latest_s = math.nan
        self._sums: dict[str, tuple[float, float]] = {}  # joules and seconds

    def add(self, readings: Sequence[Reading], now: float) -> None:
        """Adds readings at ``now`` (seconds). For each sensor, the time around a missing reading is left out.

        So is the time in which a counter was set back. The power would be one that no sensor can show.
        """
        seconds, before = now - self._latest_s, self._latest
        self._latest = {each.name: each for each in readings if each.unit is not SensorUnit.CELSIUS}
        self._latest_s = now
        for name in self._latest.keys() & before.keys():
            watts = _mean_watts(before[name], self._latest[name], seconds)
            if is_believed(watts, SensorUnit.WATT):
                joules, passed = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = joules + watts * seconds, passed + seconds

    def take(self) -> list[Reading]:
        """Returns the mean watts of each sensor since the last call, by name.

        A sensor without two readings in a row is left out. So is a counter of joules that stands still.
        """
        counters = {name for name, reading in self._latest.items() if reading.unit is SensorUnit.JOULE}
        means = [
            Reading(name, joules / seconds, SensorUnit.WATT)
            for name, (joules, seconds) in sorted(self._sums.items())
            if joules or name not in counters
        ]
        self._sums = {}
        return means


def _mean_watts(before: Reading, after: Reading, seconds: float) -> float:
    if before.unit is not after.unit or not seconds > 0.0:
        return math.nan
    if after.unit is SensorUnit.JOULE:
        return (after.value - before.value) / seconds
    return (before.value + after.value) / 2
