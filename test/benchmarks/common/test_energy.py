"""The energy of turns, by recorded sensors."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import pytest

from benchmarks.common import energy
from benchmarks.common.energy import NO_ENERGY, EnergyMeter, energy_row
from split_infer_ros.telemetry.sensors import Reading, Sensor, Sensors, SensorUnit


def sensors(unit: SensorUnit, values: Sequence[float]) -> Sensors:
    """Returns a sensor that shows one value after another, and then the last one again and again."""
    left = list(values)
    return Sensors([Sensor("psys", unit, lambda: left.pop(0) if len(left) > 1 else left[0])])


def test_a_counter_gives_the_joules_between_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "PERIOD_S", 60.0)  # it is read at both ends alone
    meter = EnergyMeter(sensors(SensorUnit.JOULE, [0.0, 100.0, 112.5]))
    with meter.around(nullcontext()):
        time.sleep(0.05)
    assert meter.joules == pytest.approx(12.5, rel=0.2)  # a machine may pause between a reading and its time


def test_power_is_read_while_a_turn_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "PERIOD_S", 0.001)
    meter, entered = EnergyMeter(sensors(SensorUnit.WATT, [20.0])), []

    @contextmanager
    def usage() -> Iterator[None]:
        entered.append("begin")
        yield
        entered.append("end")

    begin = time.monotonic()
    with meter.around(usage()):
        time.sleep(0.05)
    assert 20.0 * 0.05 <= meter.joules <= 20.0 * (time.monotonic() - begin)
    assert entered == ["begin", "end"]


@pytest.mark.parametrize("shown", [[], [Reading("cpu-thermal", 50.0, SensorUnit.CELSIUS)]], ids=["none", "temperature"])
def test_without_a_sensor_there_is_no_energy(shown: list[Reading]) -> None:
    class Others(Sensors):
        def read(self) -> list[Reading]:
            return shown

    meter = EnergyMeter(Others([]))
    with meter.around(nullcontext()):
        pass
    assert math.isnan(meter.joules)
    assert energy_row([meter.joules]) == {"energy": NO_ENERGY}


def test_a_sensor_that_falls_silent_costs_no_turn_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = EnergyMeter(sensors(SensorUnit.JOULE, [0.0, math.nan]))
    with meter.around(nullcontext()):
        pass
    row = energy_row([2.0, meter.joules, 4.0])
    assert (row["joules_per_image"], row["turns"]) == (3.0, 2)


def test_a_fault_of_a_turn_ends_the_readings() -> None:
    meter = EnergyMeter(sensors(SensorUnit.WATT, [20.0]))
    with pytest.raises(RuntimeError, match="of the turn"), meter.around(nullcontext()):
        raise RuntimeError("of the turn")
