"""Sensors of simulated machines: the files that Linux shows, and sequences of readings."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from split_infer_ros.telemetry.sensors import Reading, SensorUnit

RANGE_UJ = 262_143_328_850  # the largest count of a package of Intel


class NoNvml:
    """An NVML without a driver."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:
        raise self.NVMLError("no driver")


def write(root: Path, files: dict[str, Any]) -> Path:
    """Writes files below a folder that stands for ``/sys``, and returns the folder."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


def counter(domain: str, name: str, count: int, largest: int = RANGE_UJ) -> dict[str, Any]:
    """Returns the files of one energy counter, such as that of ``intel-rapl:0``."""
    folder = f"class/powercap/{domain}"
    return {f"{folder}/name": name, f"{folder}/energy_uj": count, f"{folder}/max_energy_range_uj": largest}


def zone(number: int, name: str, millidegrees: Any) -> dict[str, Any]:
    """Returns the files of a thermal zone."""
    folder = f"class/thermal/thermal_zone{number}"
    return {f"{folder}/type": name, f"{folder}/temp": millidegrees}


def celsius(name: str, value: float) -> Reading:
    return Reading(name, value, SensorUnit.CELSIUS)


class Recording:
    """Sensors that show what a test says: the CPU's temperature, in C. None: they do not answer."""

    def __init__(self, cpu_c: float | None) -> None:
        self.cpu_c = cpu_c
        self.is_read = threading.Event()

    def read(self) -> list[Reading]:
        self.is_read.set()
        return [] if self.cpu_c is None else [celsius("cpu-thermal", self.cpu_c), celsius("acpitz", 99.0)]
