"""Sensors of simulated machines, made of files and a simulated NVML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from split_infer_ros.telemetry.sensors import Reading, Sensors, Unit


class Nvml:
    """An NVML with two GPUs, of which the second cannot measure power. If ``broken``, there is no driver."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.silent = False

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError("no driver")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        if handle == 1 or self.silent:
            raise self.NVMLError("not supported")
        return 71_500

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:
        return 40 + handle


def board(root: Path) -> Path:
    """Makes the files of a Jetson board."""
    files: dict[str, Any] = {
        "class/hwmon/hwmon0/name": "cpu_thermal",
        "class/hwmon/hwmon0/in1_label": "not a rail",
        "class/hwmon/hwmon3/name": "ina3221",
        "class/hwmon/hwmon3/in1_label": "VDD_GPU_SOC",
        "class/hwmon/hwmon3/in1_input": 5000,
        "class/hwmon/hwmon3/curr1_input": 1200,
        "class/hwmon/hwmon3/in2_label": "VDD_CPU",
        "class/thermal/thermal_zone0/type": "gpu-thermal",
        "class/thermal/thermal_zone0/temp": 48500,
        "class/thermal/thermal_zone1/type": "cv-thermal",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


def test_each_gpu_gives_the_readings_it_supports(tmp_path: Path) -> None:
    nvml = Nvml()
    sensors = Sensors.find(tmp_path, nvml)
    assert sensors.read() == [
        Reading("GPU 0", 71.5, Unit.WATT),
        Reading("GPU 0", 40.0, Unit.CELSIUS),
        Reading("GPU 1", 41.0, Unit.CELSIUS),
    ]
    nvml.silent = True  # a sensor that falls silent later is left out, not zero
    assert sensors.read() == [Reading("GPU 0", 40.0, Unit.CELSIUS), Reading("GPU 1", 41.0, Unit.CELSIUS)]


def test_a_board_gives_its_rails_and_zones(tmp_path: Path) -> None:
    sensors = Sensors.find(board(tmp_path), Nvml(broken=True))
    assert sensors.read() == [Reading("VDD_GPU_SOC", 6.0, Unit.WATT), Reading("gpu-thermal", 48.5, Unit.CELSIUS)]


def test_a_machine_without_sensors_gives_no_readings(tmp_path: Path) -> None:
    assert Sensors.find(tmp_path, Nvml(broken=True)).read() == []
