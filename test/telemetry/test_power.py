from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.telemetry.power import MeanPower, total_watts
from split_infer_ros.telemetry.sensors import Reading, Unit


def rails(**watts: float) -> list[Reading]:
    return [Reading(name, value, Unit.WATT) for name, value in watts.items()]


def test_rails_and_gpus_are_added_up() -> None:
    assert total_watts([*rails(CPU=3.0, SOC=2.0), Reading("GPU 0", 10.0, Unit.WATT)]) == 15.0


def test_a_boards_input_already_holds_its_other_rails() -> None:
    assert total_watts(rails(VDD_CPU_GPU_CV=3.0, VDD_IN=9.0, VDD_SOC=2.0)) == 9.0


def test_without_power_sensors_the_power_is_nan() -> None:
    assert math.isnan(total_watts([Reading("gpu-thermal", 48.0, Unit.CELSIUS)]))


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
