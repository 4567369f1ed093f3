"""The power that readings add up to, and its mean over time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.telemetry.power import MeanPower, measures_power, total_watts
from split_infer_ros.telemetry.sensors import Reading, SensorUnit


def rails(**watts: float) -> list[Reading]:
    return [Reading(name, value, SensorUnit.WATT) for name, value in watts.items()]


def counted(**joules: float) -> list[Reading]:
    return [Reading(name, value, SensorUnit.JOULE) for name, value in joules.items()]


def test_rails_and_gpus_are_added_up() -> None:
    assert total_watts([*rails(CPU=3.0, SOC=2.0), Reading("GPU 0", 10.0, SensorUnit.WATT)]) == 15.0


def test_a_boards_input_already_holds_its_other_rails() -> None:
    assert total_watts(rails(VDD_CPU_GPU_CV=3.0, VDD_IN=9.0, VDD_SOC=2.0)) == 9.0


def test_a_boards_counter_that_shows_nothing_hides_no_package() -> None:
    assert total_watts(rails(**{"package-0": 3.0, "package-0 dram": 1.0}, psys=0.0)) == 4.0


def test_without_power_sensors_the_power_is_nan() -> None:
    readings = [Reading("gpu-thermal", 48.0, SensorUnit.CELSIUS)]
    assert math.isnan(total_watts(readings))
    assert not measures_power(readings)
    assert measures_power(counted(psys=0.0))


def test_power_is_averaged_over_time_not_over_readings() -> None:
    power = MeanPower()
    for now, watts in ((0.0, 10.0), (1.0, 10.0), (1.1, 30.0), (2.0, 30.0)):
        power.add(rails(CPU=watts), now)
    assert power.take()[0].value == pytest.approx((10 * 1.0 + 20 * 0.1 + 30 * 0.9) / 2)
    power.add(rails(CPU=30.0), 3.0)  # the last reading counts for what follows it
    assert power.take() == rails(CPU=30.0)
    assert power.take() == []


def test_time_around_missing_readings_is_left_out() -> None:
    power = MeanPower()
    for now, watts in ((0.0, 10.0), (1.0, 10.0), (2.0, None), (50.0, 20.0), (51.0, 20.0)):
        power.add([] if watts is None else rails(CPU=watts, SOC=1.0), now)
    assert power.take() == rails(CPU=15.0, SOC=1.0)


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 1000)), min_size=2))
def test_the_mean_lies_among_the_readings(steps: list[tuple[float, float]]) -> None:
    power, now = MeanPower(), 0.0
    for seconds, watts in steps:
        now += seconds
        power.add(rails(CPU=watts), now)
    found = [watts for _, watts in steps]
    assert min(found) - 1e-6 <= power.take()[0].value <= max(found) + 1e-6


@given(st.lists(st.tuples(st.floats(0.05, 10), st.floats(0, 100)), min_size=1))
def test_a_counter_gives_the_exact_energy(steps: list[tuple[float, float]]) -> None:
    power, now, joules = MeanPower(), 0.0, 17.0
    power.add(counted(psys=joules), now)
    for seconds, more in steps:
        now, joules = now + seconds, joules + more
        power.add(counted(psys=joules), now)
    if joules == 17.0:
        assert power.take() == [], "a counter that stands still counts nothing"
        return
    mean = power.take()[0]
    assert mean.unit is SensorUnit.WATT
    assert mean.value * now == pytest.approx(joules - 17.0, rel=1e-6, abs=1e-6)


def test_a_counter_that_was_set_back_loses_that_time_alone() -> None:
    power = MeanPower()
    # in the second step, its sensor takes a counter that was set back for one that has gone full round
    for now, joules in ((0.0, 100.0), (1.0, 110.0), (2.0, 262_243.0), (3.0, 262_253.0), (4.0, 5.0)):
        power.add(counted(psys=joules), now)
    assert power.take() == rails(psys=10.0)
