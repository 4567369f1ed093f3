"""Which processor is too hot, on drawn timelines of temperatures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_sensors import celsius

from split_infer_ros.telemetry.heat import HYSTERESIS_C, MAX_SILENT_S, Heat, Processor, processor_of
from split_infer_ros.telemetry.sensors import Reading, SensorUnit

BOUND_C = 80.0


def after(*temperatures: float, begin: Heat | None = None) -> Heat:
    heat = Heat() if begin is None else begin
    for index, value in enumerate(temperatures):
        heat = heat.after([celsius("cpu-thermal", value)], BOUND_C, float(index))
    return heat


@pytest.mark.parametrize(
    ("name", "processor"),
    [
        ("GPU 0", Processor.GPU),
        ("gpu-thermal", Processor.GPU),
        ("CPU-therm", Processor.CPU),
        ("x86_pkg_temp", Processor.CPU),
        ("bigcore0-thermal", Processor.CPU),
        ("soc-thermal", Processor.CPU),
        ("acpitz", None),
        ("iwlwifi_1", None),
        ("PMIC-Die", None),
    ],
)
def test_sensors_belong_to_processors(name: str, processor: Processor | None) -> None:
    assert processor_of(celsius(name, 50.0)) is processor
    assert processor_of(Reading(name, 50.0, SensorUnit.WATT)) is None


def test_a_hot_processor_stays_hot_until_it_is_clearly_cooler() -> None:
    assert after(BOUND_C).hot is None
    assert after(BOUND_C + 0.1).hot is Processor.CPU
    assert after(BOUND_C + 0.1, BOUND_C - HYSTERESIS_C + 0.1).hot is Processor.CPU
    assert after(BOUND_C + 0.1, BOUND_C - HYSTERESIS_C).hot is None


@given(st.lists(st.floats(20.0, 120.0), min_size=1))
def test_hot_is_what_was_above_the_bound_since_it_was_cool(temperatures: list[float]) -> None:
    expected = False
    for value in temperatures:
        expected = value > (BOUND_C - HYSTERESIS_C if expected else BOUND_C)
    assert (after(*temperatures).hot is Processor.CPU) is expected


@given(st.lists(st.tuples(st.floats(20.0, 120.0), st.floats(20.0, 120.0)), min_size=1))
def test_only_a_cooled_processor_makes_room_for_another(pairs: list[tuple[float, float]]) -> None:
    heat = Heat()
    for index, (cpu_c, gpu_c) in enumerate(pairs):
        before, values = heat.hot, {Processor.CPU: cpu_c, Processor.GPU: gpu_c}
        heat = heat.after([celsius("cpu", cpu_c), celsius("GPU 0", gpu_c)], BOUND_C, float(index))
        if before is not None and heat.hot is not before:
            assert values[before] <= BOUND_C - HYSTERESIS_C
        if heat.hot is not None:
            assert values[heat.hot] > BOUND_C - HYSTERESIS_C
        elif before is None:
            assert max(values.values()) <= BOUND_C


def test_silent_sensors_keep_a_processor_hot_for_a_while_only() -> None:
    hot = after(BOUND_C + 5.0)
    assert hot.after([], BOUND_C, MAX_SILENT_S - 1.0).hot is Processor.CPU
    assert hot.after([], BOUND_C, MAX_SILENT_S).hot is None


def test_the_hottest_core_counts() -> None:
    heat = Heat().after([celsius("cpu0", 60.0), celsius("cpu1", 90.0), celsius("acpitz", 120.0)], BOUND_C, 0.0)
    assert heat.hottest == celsius("cpu1", 90.0)


def test_without_a_bound_nothing_is_hot_or_told() -> None:
    heat = after(BOUND_C + 5.0).after([celsius("cpu", 140.0)], 0.0, 1.0)
    assert heat == Heat()
    assert heat.text("cpu") == ""


def test_the_text_names_sensor_value_bound_and_preference() -> None:
    assert after(70.0).text("cpu") == "cpu-thermal shows 70.0 C, within max_temperature_c 80"
    assert after(83.0).text("cpu") == (
        "cpu-thermal shows 83.0 C, too hot for max_temperature_c 80: what needs less time of the CPU is preferred "
        "until it shows 75 C"
    )
    assert Heat().after([], BOUND_C, 0.0).text("cpu") == (
        "no sensor of a processor's temperature answers, so max_temperature_c 80 has no effect"
    )


def test_a_hot_gpu_concerns_only_models_that_use_it() -> None:
    heat = Heat().after([celsius("GPU 0", 90.0)], BOUND_C, 0.0)
    assert heat.hot_for("cuda") is Processor.GPU
    assert heat.hot_for("cpu") is None
    assert heat.text("cpu") == "GPU 0 shows 90.0 C, too hot for max_temperature_c 80, but this model does not run there"
