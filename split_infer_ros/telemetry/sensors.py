"""Reads the power and temperature sensors of this machine, adds up their power, and averages it over time.

A missing sensor has no reading, not a zero.
"""

from __future__ import annotations

import enum
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

WHOLE_BOARD = ("VDD_IN", "POM_5V_IN", "5V_IN")  # names, on several Jetson boards, of the rail that feeds all others


class SensorUnit(enum.Enum):
    """The unit in which a sensor measures."""

    WATT = "W"
    CELSIUS = "C"


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of one sensor.

    Attributes:
        name: the name of the sensor, such as ``GPU 0`` or a rail of the board.
        value: the value in ``unit``.
        unit: the unit of the value.
    """

    name: str
    value: float
    unit: SensorUnit


Sensor = Callable[[], Reading]


class Sensors:
    """Reads the sensors of this machine.

    Args:
        sensors: functions that return a reading, or raise an error if the sensor does not answer.
    """

    def __init__(self, sensors: Sequence[Sensor]) -> None:
        self._sensors = sensors

    @classmethod
    def find(cls, system: Path = Path("/sys"), nvml: Any = None) -> Sensors:
        """Finds the sensors that answer.

        Args:
            system: the folder where Linux shows its sensors.
            nvml: NVIDIA's binding of its management library; None: the installed one, if there is one.
        """
        sensors = (*_gpu_sensors(nvml or _import_nvml()), *_rails(system), *_zones(system))
        return cls([sensor for sensor in sensors if _read(sensor) is not None])

    def read(self) -> list[Reading]:
        """Returns the current readings. Sensors that no longer answer are left out."""
        return [reading for reading in map(_read, self._sensors) if reading is not None]


def total_watts(readings: Sequence[Reading]) -> float:
    """Returns the power of everything that the sensors cover; NaN without a power sensor.

    If the board has a sensor at its input, that sensor's power is the total. Otherwise it is the sum of all GPUs and
    rails.
    """
    watts = {reading.name: reading.value for reading in readings if reading.unit is SensorUnit.WATT}
    whole_board = [value for name, value in watts.items() if name in WHOLE_BOARD]
    return sum(whole_board or watts.values()) if watts else math.nan


class MeanPower:
    """Averages power over the time since the last call of ``take``. It assumes a linear change between two readings."""

    def __init__(self) -> None:
        self._latest_s = self._latest_watts = math.nan
        self._joules = self._seconds = 0.0

    def add(self, watts: float, now: float) -> None:
        """Adds a reading in watts at ``now`` (seconds). The time before and after a NaN reading is left out."""
        seconds = now - self._latest_s
        joules = (self._latest_watts + watts) / 2 * seconds
        if not math.isnan(joules):
            self._joules += joules
            self._seconds += seconds
        self._latest_s, self._latest_watts = now, watts

    def take(self) -> float:
        """Returns the mean watts since the last call; NaN if there were no two readings in a row that are numbers."""
        mean = self._joules / self._seconds if self._seconds else math.nan
        self._joules = self._seconds = 0.0
        return mean


def _gpu_sensors(nvml: Any) -> Iterator[Sensor]:
    """Yields the sensors of NVIDIA's GPUs. On Jetson boards NVML starts, but its sensors do not answer."""
    if nvml is None:
        return
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:  # no driver
        return
    for index, handle in enumerate(handles):
        yield partial(_gpu_power, nvml, f"GPU {index}", handle)
        yield partial(_gpu_temperature, nvml, f"GPU {index}", handle)


def _gpu_power(nvml: Any, name: str, handle: Any) -> Reading:
    return Reading(name, nvml.nvmlDeviceGetPowerUsage(handle) / 1e3, SensorUnit.WATT)


def _gpu_temperature(nvml: Any, name: str, handle: Any) -> Reading:
    return Reading(name, float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)), SensorUnit.CELSIUS)


def _rails(system: Path) -> Iterator[Sensor]:
    """Yields the rails of INA3221 power monitors, which Jetson boards have."""
    for label in sorted(system.glob("class/hwmon/hwmon*/in*_label")):
        monitor, channel = label.parent, label.name.removeprefix("in").removesuffix("_label")
        with suppress(OSError):
            if (monitor / "name").read_text().strip() != "ina3221":
                continue
            name = label.read_text().strip()
            yield partial(_rail_power, name, monitor / f"in{channel}_input", monitor / f"curr{channel}_input")


def _rail_power(name: str, millivolts: Path, milliamperes: Path) -> Reading:
    return Reading(name, _number(millivolts) * _number(milliamperes) / 1e6, SensorUnit.WATT)


def _zones(system: Path) -> Iterator[Sensor]:
    """Yields the thermal zones of Linux."""
    for zone in sorted(system.glob("class/thermal/thermal_zone*")):
        with suppress(OSError):
            yield partial(_zone_temperature, (zone / "type").read_text().strip(), zone / "temp")


def _zone_temperature(name: str, millidegrees: Path) -> Reading:
    return Reading(name, _number(millidegrees) / 1e3, SensorUnit.CELSIUS)


def _number(file: Path) -> float:
    return float(file.read_text())


def _read(sensor: Sensor) -> Reading | None:
    try:
        return sensor()
    except Exception:  # each kind of sensor fails with errors of its own
        return None


def _import_nvml() -> Any:
    with suppress(ImportError):
        return importlib.import_module("pynvml")
    return None
