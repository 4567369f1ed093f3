"""Reads the power, energy and temperature sensors of this machine.

A sensor that is missing, or shows what cannot be, has no reading. It never counts as zero.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from split_infer_ros.errors import error_sentence


class SensorUnit(enum.Enum):
    """The unit in which a sensor measures. Joules are counted from an unknown time on."""

    WATT = "W"
    JOULE = "J"
    CELSIUS = "C"


BELIEVED = {  # the least and the largest value that a sensor of a computer can show
    SensorUnit.WATT: (0.0, 10_000.0),
    SensorUnit.JOULE: (0.0, 1e15),
    SensorUnit.CELSIUS: (-55.0, 150.0),
}


def is_believed(value: float, unit: SensorUnit) -> bool:
    """Returns whether a sensor can have measured a value.

    Exactly 0 C is not believed: sensors without power show it for ever. NaN is never believed.
    """
    low, high = BELIEVED[unit]
    return low <= value <= high and (unit is not SensorUnit.CELSIUS or value != 0.0)


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


@dataclass(frozen=True, slots=True)
class Sensor:
    """One sensor of this machine.

    Attributes:
        name: its name, for the user.
        unit: the unit in which it measures.
        measure: returns the present value, or raises an error if the sensor does not answer.
    """

    name: str
    unit: SensorUnit
    measure: Callable[[], float]

    def read(self) -> Reading | str:
        """Returns the present reading, or says in words why there is none."""
        try:
            value = self.measure()
        except PermissionError as error:
            return f"this user may not read {error.filename}; as root: chmod o+r {error.filename}"
        except Exception as error:  # each kind of sensor fails with errors of its own
            return f"it does not answer ({error_sentence(error)})"
        if is_believed(value, self.unit):
            return Reading(self.name, value, self.unit)
        low, high = BELIEVED[self.unit]
        unit = self.unit.value
        return f"it shows {value:g} {unit}; {low:g} to {high:g} {unit} are believed, except exactly 0 C"


class Sensors:
    """Reads the sensors of this machine.

    Args:
        sensors: the sensors, whether they answer or not. One may begin to answer later.
    """

    def __init__(self, sensors: Sequence[Sensor]) -> None:
        self._sensors = tuple(sensors)

    @classmethod
    def find(cls, system: Path = Path("/sys"), nvml: Any = None) -> Sensors:
        """Finds the sensors of this machine.

        Args:
            system: the folder where Linux shows its sensors.
            nvml: NVIDIA's binding of its management library; None: the installed one, if there is one.
        """
        gpus = _gpu_sensors(nvml or _import_nvml())
        return cls([*gpus, *_energy_counters(system), *_rails(system), *_zones(system)])

    def read(self) -> list[Reading]:
        """Returns the current readings. Sensors that do not answer are left out."""
        return [reading for reading in (sensor.read() for sensor in self._sensors) if isinstance(reading, Reading)]

    def faults(self) -> dict[str, str]:
        """Returns for each sensor without a reading, by name and unit, why it has none."""
        found = {f"{sensor.name} ({sensor.unit.value})": sensor.read() for sensor in self._sensors}
        return {name: fault for name, fault in found.items() if isinstance(fault, str)}


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
        yield Sensor(f"GPU {index}", SensorUnit.WATT, partial(_gpu_power, nvml, handle))
        yield Sensor(f"GPU {index}", SensorUnit.CELSIUS, partial(_gpu_temperature, nvml, handle))


def _gpu_power(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1e3


def _gpu_temperature(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))


def _energy_counters(system: Path) -> Iterator[Sensor]:
    """Yields the energy counters (RAPL) of processors of Intel and AMD.

    A package holds its cores and its graphics, so these are left out. It does not hold its memory (``dram``).
    """
    for domain in sorted(system.glob("class/powercap/intel-rapl:*")):
        with suppress(OSError, ValueError):
            name, package = (domain / "name").read_text().strip(), domain.name.rpartition(":")[0]
            if ":" in package:
                if name != "dram":
                    continue
                name = f"{(domain.parent / package / 'name').read_text().strip()} {name}"
            counter = _Counter(domain / "energy_uj", _number(domain / "max_energy_range_uj"))
            yield Sensor(name, SensorUnit.JOULE, counter.joules)


class _Counter:
    """Counts on where a counter of microjoules begins again at 0.

    Args:
        file: shows the count.
        largest: the largest count.
    """

    def __init__(self, file: Path, largest: float) -> None:
        self._file, self._largest = file, largest
        self._latest = self._before = 0.0

    def joules(self) -> float:
        """Returns the joules since the counter's own beginning, or those of rounds that were seen."""
        count = _number(self._file)
        if not 0.0 <= count <= self._largest:
            raise ValueError(f"its count is {count:g}, and its largest one {self._largest:g}")
        if count < self._latest:
            self._before += self._largest
        self._latest = count
        return (self._before + count) / 1e6


def _rails(system: Path) -> Iterator[Sensor]:
    """Yields the rails of INA3221 power monitors, which Jetson boards have."""
    for label in sorted(system.glob("class/hwmon/hwmon*/in*_label")):
        monitor, channel = label.parent, label.name.removeprefix("in").removesuffix("_label")
        with suppress(OSError, ValueError):
            if (monitor / "name").read_text().strip() != "ina3221":
                continue
            files = monitor / f"in{channel}_input", monitor / f"curr{channel}_input"
            yield Sensor(label.read_text().strip(), SensorUnit.WATT, partial(_rail_power, *files))


def _rail_power(millivolts: Path, milliamperes: Path) -> float:
    return _number(millivolts) * _number(milliamperes) / 1e6


def _zones(system: Path) -> Iterator[Sensor]:
    """Yields the thermal zones of Linux."""
    for zone in sorted(system.glob("class/thermal/thermal_zone*")):
        with suppress(OSError, ValueError):
            name = (zone / "type").read_text().strip()
            yield Sensor(name, SensorUnit.CELSIUS, partial(_zone_temperature, zone / "temp"))


def _zone_temperature(millidegrees: Path) -> float:
    return _number(millidegrees) / 1e3


def _number(file: Path) -> float:
    return float(file.read_text())


def _import_nvml() -> Any:
    with suppress(ImportError):
        return importlib.import_module("pynvml")
    return None
