"""Power and temperature, as far as this machine tells them: a sensor that is not there is absent, not zero."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WATT, CELSIUS = "W", "C"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one sensor says.

    Attributes:
        name: of the sensor, such as ``GPU 0`` or a rail of the board.
        value: in ``unit``.
        unit: WATT or CELSIUS.
    """

    name: str
    value: float
    unit: str


Sensor = Callable[[], Reading]


class Sensors:
    """The sensors that answered once.

    Args:
        system: where Linux shows its sensors.
        nvml: NVIDIA's binding of its management library; None where it is not installed.
    """

    def __init__(self, system: Path = Path("/sys"), nvml: Any = None) -> None:
        self._nvml = nvml or _import_nvml()
        self._sensors = [
            sensor
            for sensor in (*self._gpu_sensors(), *_rails(system), *_zones(system))
            if _ask(sensor) is not None  # on Jetson boards NVML starts, and then knows nothing
        ]

    def read(self) -> list[Reading]:
        """What they say now; one that no longer answers is left out."""
        return [reading for reading in map(_ask, self._sensors) if reading is not None]

    def _gpu_sensors(self) -> Iterator[Sensor]:
        nvml = self._nvml
        if nvml is None:
            return
        try:
            nvml.nvmlInit()
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError:  # no driver
            return
        for index, handle in enumerate(handles):
            name = f"GPU {index}"
            yield lambda name=name, handle=handle: Reading(  # type: ignore[misc]
                name, nvml.nvmlDeviceGetPowerUsage(handle) / 1e3, WATT
            )
            yield lambda name=name, handle=handle: Reading(  # type: ignore[misc]
                name, float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)), CELSIUS
            )


def _rails(system: Path) -> Iterator[Sensor]:
    """INA3221 power monitors, as Jetson boards have them: millivolts and milliamperes of each named rail."""
    for label in sorted(system.glob("class/hwmon/hwmon*/in*_label")):
        monitor, channel = label.parent, label.name.removeprefix("in").removesuffix("_label")
        with suppress(OSError):
            if (monitor / "name").read_text().strip() != "ina3221":
                continue
            volts, amperes = monitor / f"in{channel}_input", monitor / f"curr{channel}_input"
            name = label.read_text().strip()
            yield lambda name=name, volts=volts, amperes=amperes: Reading(  # type: ignore[misc]
                name, _number(volts) * _number(amperes) / 1e6, WATT
            )


def _zones(system: Path) -> Iterator[Sensor]:
    """Thermal zones: thousandths of a degree."""
    for zone in sorted(system.glob("class/thermal/thermal_zone*")):
        with suppress(OSError):
            name, file = (zone / "type").read_text().strip(), zone / "temp"
            yield lambda name=name, file=file: Reading(name, _number(file) / 1e3, CELSIUS)  # type: ignore[misc]


def _number(file: Path) -> float:
    return float(file.read_text())


def _ask(sensor: Sensor) -> Reading | None:
    try:
        return sensor()
    except Exception:  # each kind fails in its own way, and means the same by it
        return None


def _import_nvml() -> Any:
    with suppress(ImportError):
        return importlib.import_module("pynvml")
    return None
