"""Sensors of simulated machines, made of files and a simulated NVML, and the power that they add up to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.telemetry.sensors import MeanPower, Reading, Sensors, SensorUnit, total_watts


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
        Reading("GPU 0", 71.5, SensorUnit.WATT),
        Reading("GPU 0", 40.0, SensorUnit.CELSIUS),
        Reading("GPU 1", 41.0, SensorUnit.CELSIUS),
    ]
    nvml.silent = True  # a sensor that falls silent later is left out, not zero
    assert sensors.read() == [Reading("GPU 0", 40.0, SensorUnit.CELSIUS), Reading("GPU 1", 41.0, SensorUnit.CELSIUS)]


def test_a_board_gives_its_rails_and_zones(tmp_path: Path) -> None:
    sensors = Sensors.find(board(tmp_path), Nvml(broken=True))
    assert sensors.read() == [
        Reading("VDD_GPU_SOC", 6.0, SensorUnit.WATT),
        Reading("gpu-thermal", 48.5, SensorUnit.CELSIUS),
    ]


def test_a_machine_without_sensors_gives_no_readings(tmp_path: Path) -> None:
    assert Sensors.find(tmp_path, Nvml(broken=True)).read() == []


def rails(**watts: float) -> list[Reading]:
    return [Reading(name, value, SensorUnit.WATT) for name, value in watts.items()]


def test_rails_and_gpus_are_added_up() -> None:
    assert total_watts([*rails(CPU=3.0, SOC=2.0), Reading("GPU 0", 10.0, SensorUnit.WATT)]) == 15.0


def test_a_boards_input_already_holds_its_other_rails() -> None:
    assert total_watts(rails(VDD_CPU_GPU_CV=3.0, VDD_IN=9.0, VDD_SOC=2.0)) == 9.0


def test_without_power_sensors_the_power_is_nan() -> None:
    assert math.isnan(total_watts([Reading("gpu-thermal", 48.0, SensorUnit.CELSIUS)]))


def test_power_is_averaged_over_time_not_over_readings() -> None:
    power = MeanPower()
    for now, watts in ((0.0, 10.0), (1.0, 10.0), (1.1, 30.0), (2.0, 30.0)):
        power.add(watts, now)
    assert power.take() == pytest.approx((10 * 1.0 + 20 * 0.1 + 30 * 0.9) / 2)
    power.add(30.0, 3.0)  # the last reading counts for what follows it
    assert power.take() == 30.0
    assert math.isnan(power.take())


def test_time_around_missing_readings_is_left_out() -> None:
    power = MeanPower()
    for now, watts in ((0.0, 10.0), (1.0, 10.0), (2.0, math.nan), (50.0, 20.0), (51.0, 20.0)):
        power.add(watts, now)
    assert power.take() == 15.0


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 1000)), min_size=2))
def test_the_mean_lies_among_the_readings(steps: list[tuple[float, float]]) -> None:
    power, now = MeanPower(), 0.0
    for seconds, watts in steps:
        now += seconds
        power.add(watts, now)
    found = [watts for _, watts in steps]
    assert min(found) - 1e-6 <= power.take() <= max(found) + 1e-6
