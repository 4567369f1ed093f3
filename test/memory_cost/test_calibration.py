"""Calibration finds the constants of synthetic machines. Constants that rounds disagree about are not used."""

from __future__ import annotations

import math

import pytest

from benchmarks.common import synthetic_machine as synthetic
from split_infer_ros.memory_cost.calibration import (
    GROUPS,
    MAX_SPREAD,
    ROUNDS,
    Calibration,
    calibrate,
    fit,
    sizes,
)
from split_infer_ros.memory_cost.constants import ALL_CONSTANTS
from split_infer_ros.memory_cost.cpu_microbenchmarks import CpuMicrobenchmarks
from split_infer_ros.memory_cost.samples import Probe

ALL = tuple(Probe)


@pytest.mark.parametrize("seed", range(6))
def test_constants_are_recovered_within_5_percent(seed: int) -> None:
    """The timings have 5 % noise, and a tenth of them are 2 to 10 times too long."""
    machine = synthetic.draw_machine(seed)
    found = calibrate(machine, ALL)
    assert found.uncertain == ()
    for row in ALL_CONSTANTS:
        expected = getattr(machine.constants, row.name)
        assert getattr(found.constants, row.name) == pytest.approx(expected, rel=0.05), row.name


def test_exact_timings_give_exact_constants() -> None:
    machine = synthetic.draw_machine(0)
    machine.noise = machine.outliers = 0
    found = calibrate(machine, ALL)
    for row in ALL_CONSTANTS:
        assert getattr(found.constants, row.name) == pytest.approx(getattr(machine.constants, row.name), rel=1e-6)
        assert found.spreads[row.name] < 1e-6


def test_costs_that_a_machine_does_not_have_are_zero() -> None:
    machine = synthetic.draw_machine(1)
    names = ("managed_mapping_ms_per_byte", "cpu_flush_ms", "first_touch_ms_per_byte", "write_back_ms_per_byte")
    for name in names:
        object.__setattr__(machine.constants, name, 0.0)
    found = calibrate(machine, ALL)
    assert found.uncertain == ()
    for name in names[:2]:
        probe, size = (Probe.KERNEL_DEVICE, 2**20 if name.endswith("byte") else 1)
        plain = machine.exact_ms(probe, size) / (size if name.endswith("byte") else 1)
        assert 0 <= getattr(found.constants, name) < 0.05 * plain


def test_missing_probes_leave_constants_absent() -> None:
    found = calibrate(synthetic.draw_machine(3), CpuMicrobenchmarks.probes)
    present = {row.name for row in ALL_CONSTANTS if not math.isnan(getattr(found.constants, row.name))}
    assert present == {
        "copy_start_ms",
        "to_device_ms_per_byte",
        "to_host_ms_per_byte",
        "first_touch_ms_per_byte",
        "memory_ms_per_byte",
        "cache_ms_per_byte",
    }
    assert set(found.measured) == present


class Busy:
    """A machine that another program slows down for minutes, so rounds disagree about the time of a copy."""

    def __init__(self, machine: object, until: float = math.inf) -> None:
        self.machine = machine
        self.until = until
        self.calls = 0
        self.timed: dict[Probe, int] = {}

    def __call__(self, probe: Probe, nbytes: int) -> float:
        self.calls += 1
        self.timed[probe] = self.timed.get(probe, 0) + 1
        taken = self.machine(probe, nbytes)  # type: ignore[operator]
        if probe is Probe.TO_HOST and self.calls < self.until:
            taken *= 1 + self.timed[probe] // len(sizes(probe)) % GROUPS
        return float(taken)


def test_only_probes_that_disagree_are_timed_again() -> None:
    machine = synthetic.draw_machine(4)
    once = (ROUNDS + 1) * sum(len(sizes(probe)) for probe in ALL)
    busy, said = Busy(machine, until=once), []
    found = calibrate(busy, ALL, say=said.append)
    assert found.uncertain == ()
    assert found.constants.to_host_ms_per_byte == pytest.approx(machine.constants.to_host_ms_per_byte, rel=0.05)
    assert len(said) == 1
    assert "to_host_ms_per_byte" in said[0]
    again = {probe for probe, count in busy.timed.items() if count > (ROUNDS + 1) * len(sizes(probe))}
    assert again == {Probe.TO_HOST, Probe.TO_DEVICE}  # both tell of the start of a copy


def test_a_constant_that_stays_uncertain_is_not_used() -> None:
    found = calibrate(Busy(synthetic.draw_machine(4)), ALL)
    assert set(found.uncertain) == {"to_host_ms_per_byte", "copy_start_ms"}
    assert found.spreads["to_host_ms_per_byte"] > MAX_SPREAD
    assert math.isnan(found.constants.to_host_ms_per_byte)
    assert not math.isnan(found.constants.to_device_ms_per_byte)


def test_no_round_begins_after_the_time_limit() -> None:
    busy = Busy(synthetic.draw_machine(4))
    found = calibrate(busy, ALL, max_seconds=10.0, clock=lambda: float(busy.calls))
    assert busy.calls == (GROUPS + 1) * sum(len(sizes(probe)) for probe in ALL)  # the least that can be judged
    assert "to_host_ms_per_byte" in found.uncertain


def test_stored_probes_are_not_timed() -> None:
    machine = synthetic.draw_machine(5)
    first = calibrate(machine, [Probe.TO_DEVICE, Probe.TO_HOST])
    busy = Busy(machine, until=0)
    found = calibrate(busy, CpuMicrobenchmarks.probes, stored={**first.samples, Probe.READ_HOST: {1: (1.0,)}})
    assert set(busy.timed) == set(CpuMicrobenchmarks.probes) - {Probe.TO_DEVICE, Probe.TO_HOST}
    assert found.constants.to_host_ms_per_byte == first.constants.to_host_ms_per_byte


def test_too_few_samples_are_uncertain() -> None:
    machine = synthetic.draw_machine(0)
    few = {Probe.TO_HOST: {size: (machine(Probe.TO_HOST, size),) * (GROUPS - 1) for size in sizes(Probe.TO_HOST)}}
    assert fit(few).uncertain == ("to_host_ms_per_byte",)
    one_size = {Probe.TO_HOST: {4096: (1.0,) * GROUPS}}
    assert fit(one_size) == Calibration({}, {}, one_size)
    assert fit({Probe.TO_HOST: {4096: (0.0,) * GROUPS, 8192: (0.0,) * GROUPS}}).measured == {}
