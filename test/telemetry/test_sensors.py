"""Sensors of simulated machines, made of files and a simulated NVML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_sensors import RANGE_UJ, NoNvml, counter, write, zone

from split_infer_ros.telemetry.sensors import Reading, Sensors, SensorUnit, is_believed


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
    return write(root, files)


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


def joules(sensors: Sensors) -> dict[str, float]:
    return {reading.name: reading.value for reading in sensors.read() if reading.unit is SensorUnit.JOULE}


def test_packages_and_their_memory_count_but_not_their_parts(tmp_path: Path) -> None:
    files = {
        **counter("intel-rapl:0", "package-0", 5_000_000),
        **counter("intel-rapl:0:0", "core", 3_000_000),
        **counter("intel-rapl:0:1", "uncore", 1_000_000),
        **counter("intel-rapl:0:2", "dram", 2_000_000),
        **counter("intel-rapl:1", "psys", 9_000_000),
        **counter("intel-rapl-mmio:0", "package-0", 7_000_000),  # the same package once more
    }
    sensors = Sensors.find(write(tmp_path, files), NoNvml())
    assert joules(sensors) == {"package-0": 5.0, "package-0 dram": 2.0, "psys": 9.0}
    assert sensors.faults() == {}


@given(steps=st.lists(st.integers(0, RANGE_UJ - 1), min_size=1, max_size=8))
def test_a_counter_that_begins_again_counts_on(tmp_path_factory: pytest.TempPathFactory, steps: list[int]) -> None:
    root, count = tmp_path_factory.mktemp("sys"), 100
    write(root, counter("intel-rapl:0", "package-0", count))
    sensors = Sensors.find(root, NoNvml())
    first = joules(sensors)["package-0"]
    for step in steps:
        count = (count + step) % RANGE_UJ
        write(root, counter("intel-rapl:0", "package-0", count))
        latest = joules(sensors)["package-0"]
    assert latest - first == pytest.approx(sum(steps) / 1e6, rel=1e-9, abs=1e-6)


def test_what_may_not_be_read_says_what_makes_it_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sensors = Sensors.find(write(tmp_path, counter("intel-rapl:0", "package-0", 1)), NoNvml())
    file = tmp_path / "class/powercap/intel-rapl:0/energy_uj"

    def refuse(path: Path, *arguments: Any) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)  # root may read whatever its mode says
    assert sensors.read() == []
    assert sensors.faults() == {"package-0 (J)": f"this user may not read {file}; as root: chmod o+r {file}"}


@pytest.mark.parametrize("shown", ["-273000", "0", "1000000000000", "nan", "inf", "", "hot", "\x00"], ids=repr)
def test_nonsense_of_a_zone_is_left_out_and_named(tmp_path: Path, shown: str) -> None:
    sensors = Sensors.find(write(tmp_path, {**zone(0, "cpu-thermal", shown), **zone(1, "gpu", 41_000)}), NoNvml())
    assert sensors.read() == [Reading("gpu", 41.0, SensorUnit.CELSIUS)]
    assert list(sensors.faults()) == ["cpu-thermal (C)"]
    write(tmp_path, zone(0, "cpu-thermal", 60_000))  # it may answer later
    assert Reading("cpu-thermal", 60.0, SensorUnit.CELSIUS) in sensors.read()


@pytest.mark.parametrize("count", [-1, RANGE_UJ + 1, "nan"])
def test_nonsense_of_a_counter_is_left_out_and_named(tmp_path: Path, count: Any) -> None:
    sensors = Sensors.find(write(tmp_path, counter("intel-rapl:0", "package-0", count)), NoNvml())
    assert sensors.read() == []
    assert list(sensors.faults()) == ["package-0 (J)"]


def test_a_zone_with_a_broken_name_costs_no_other_sensor(tmp_path: Path) -> None:
    write(tmp_path, zone(1, "cpu-thermal", 50_000))
    (tmp_path / "class/thermal/thermal_zone0").mkdir()
    (tmp_path / "class/thermal/thermal_zone0/type").write_bytes(b"\xff\xfe")
    assert Sensors.find(tmp_path, NoNvml()).read() == [Reading("cpu-thermal", 50.0, SensorUnit.CELSIUS)]


@given(st.floats(), st.sampled_from(SensorUnit))
def test_only_finite_values_are_believed(value: float, unit: SensorUnit) -> None:
    believed = is_believed(value, unit)
    assert not believed or abs(value) <= 1e15  # which neither NaN nor infinity is
    assert not (believed and value < 0 and unit is not SensorUnit.CELSIUS)
