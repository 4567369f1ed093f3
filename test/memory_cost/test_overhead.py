"""Each equation against a result calculated by hand, and properties that hold for all numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from assumed_boards import drawn_kernels, drawn_machines, drawn_tasks, sizes
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.memory_cost.constants import ALL_CONSTANTS, MachineConstants
from split_infer_ros.memory_cost.overhead import overhead, penalty, response_ms, transfer_ms
from split_infer_ros.memory_cost.task import Kernel, Task, feature_task

CONSTANTS = MachineConstants(
    copy_start_ms=0.5,
    to_device_ms_per_byte=2e-3,
    to_host_ms_per_byte=3e-3,
    first_touch_ms_per_byte=1e-3,
    managed_mapping_ms_per_byte=4e-3,
    pinned_mapping_ms_per_byte=5e-3,
    cpu_flush_ms=0.25,
    gpu_flush_ms=1.5,
    write_back_ms_per_byte=1e-2,
    memory_ms_per_byte=7e-3,
    cache_ms_per_byte=2e-3,
    uncached_read_ms_per_byte=1e-3,
)
DIRTY = Kernel(300, written_bytes=100, mapped_bytes=300, cached_bytes=600)
CLEAN = Kernel(500, written_bytes=400, cached_bytes=1000, latency_hidden=True)
TASK = Task("by hand", 1000, 200, (DIRTY, CLEAN), copies=3)


def total(task: Task, policy: Policy, constants: MachineConstants = CONSTANTS) -> float:
    return overhead(task, policy, constants).total_ms


def test_eq_1_without_its_second_o() -> None:
    latency, process, gap, k = 0.3, 0.2, 2e-3, 1000
    assert transfer_ms(k, gap, 1, latency + process) == pytest.approx(latency + process + gap * k) == 2.5


def test_eq_2_is_the_overhead_of_device() -> None:
    assert total(TASK, Policy.DEVICE) == pytest.approx(3 * 0.5 + 3e-3 * 200 + 2e-3 * 1000) == pytest.approx(4.1)
    assert total(replace(TASK, fresh_host=True), Policy.DEVICE) == pytest.approx(4.1 + 1e-3 * 200)  # l_ini in ms/byte


def test_eq_3_counts_only_launches_with_a_dirty_cache() -> None:
    unwritten = replace(TASK, kernels=tuple(replace(kernel, written_bytes=0) for kernel in TASK.kernels))
    found = overhead(unwritten, Policy.MANAGED, CONSTANTS)
    assert found.idle_ms == pytest.approx(300 * 4e-3)
    assert found.busy_ms == pytest.approx(0.25)
    twice = replace(unwritten, kernels=(DIRTY, DIRTY, CLEAN))
    assert overhead(twice, Policy.MANAGED, CONSTANTS).idle_ms == pytest.approx(2 * 300 * 4e-3)


@pytest.mark.parametrize(("written", "cost"), [(0, 0.0), (100, 1.0), (150, 1.5), (151, 1.5), (10**9, 1.5)])
def test_eq_4_bounds_write_back_by_the_cache(written: int, cost: float) -> None:
    task = Task("t", 0, 0, (Kernel(0, written_bytes=written),), copies=0)
    assert total(task, Policy.MANAGED) == pytest.approx(cost)
    twice = replace(task, kernels=(Kernel(0, written_bytes=written, launches=2),))
    assert total(twice, Policy.MANAGED) == pytest.approx(2 * cost), "each kernel is flushed"


def test_pages_that_move_go_back_once() -> None:
    """Where no cache bounds the cost, only the bytes that the CPU gets move, however many kernels change them."""
    moving = replace(CONSTANTS, gpu_flush_ms=math.inf)
    task = Task("t", 0, 300, (Kernel(0, written_bytes=100, launches=2),), copies=0)
    assert total(task, Policy.MANAGED, moving) == pytest.approx(200 * 1e-2)
    often = replace(task, kernels=(Kernel(0, written_bytes=100, launches=1000),))
    assert total(often, Policy.MANAGED, moving) == pytest.approx(300 * 1e-2)


@given(drawn_kernels, drawn_machines, st.integers(0, 5))
def test_launches_count_one_by_one(kernel: Kernel, machine: MachineConstants, launches: int) -> None:
    """Sums of equal terms may differ from a product by rounding."""
    alike = Task("t", 0, 0, (replace(kernel, launches=launches),), copies=0)
    apart = Task("t", 0, 0, (replace(kernel, launches=1),) * launches, copies=0)
    assert alike.num_kernels == apart.num_kernels == launches
    for policy in POLICIES:
        assert total(alike, policy, machine) == pytest.approx(total(apart, policy, machine))


def test_eq_5_is_the_overhead_of_managed() -> None:
    assert total(TASK, Policy.MANAGED) == pytest.approx((1.2 + 0.25) + (1.0 + 1.5)) == pytest.approx(3.95)


def test_eq_6_turns_each_hit_into_a_miss() -> None:
    silent = replace(TASK, to_host_bytes=0)
    assert overhead(silent, Policy.PINNED, CONSTANTS).busy_ms == pytest.approx(600 * (7e-3 - 2e-3))


def test_pinned_results_are_read_past_the_cpus_cache() -> None:
    silent = replace(TASK, to_host_bytes=0)
    assert total(TASK, Policy.PINNED) - total(silent, Policy.PINNED) == pytest.approx(200 * 1e-3)
    unknown = replace(CONSTANTS, uncached_read_ms_per_byte=math.nan)
    assert not overhead(TASK, Policy.PINNED, unknown).is_known
    assert total(silent, Policy.PINNED, unknown) == total(silent, Policy.PINNED)  # exact: nothing is read


def test_eq_7_hides_latency_by_much_parallelism() -> None:
    assert penalty(DIRTY, CONSTANTS) == pytest.approx(5e-3)
    assert penalty(CLEAN, CONSTANTS) == 0
    assert penalty(DIRTY, replace(CONSTANTS, memory_ms_per_byte=1e-3)) == 0  # no gain from a miss


def test_eq_8_is_the_overhead_of_pinned() -> None:
    assert total(TASK, Policy.PINNED) == pytest.approx(3.0 + 0.2 + (300 + 500) * 5e-3)


def test_overlap_recovers_idle_minus_busy_time() -> None:
    assert overhead(TASK, Policy.MANAGED, CONSTANTS).recoverable_ms == pytest.approx(1.2 - 0.25 - 2.5)
    assert overhead(TASK, Policy.PINNED, CONSTANTS).recoverable_ms == pytest.approx(4.0 - 3.2)
    assert overhead(TASK, Policy.DEVICE, CONSTANTS).idle_ms == 0


def test_response_is_execution_plus_overhead() -> None:
    assert response_ms(replace(TASK, execution_ms=2.0), overhead(TASK, Policy.DEVICE, CONSTANTS)) == pytest.approx(6.1)


def test_overheads_of_a_slot_and_a_batch() -> None:
    assert total(feature_task(100), Policy.DEVICE) == pytest.approx(0.5 + 0.3)
    assert total(feature_task(100), Policy.MANAGED) == pytest.approx(0.4 + 0.25 + 1.0)
    assert total(feature_task(100), Policy.PINNED) == pytest.approx(0.5 + 0.1)
    staging = Task("staging", to_device_bytes=100, to_host_bytes=0, kernels=(Kernel(100, mapped_bytes=100),), copies=1)
    assert total(staging, Policy.DEVICE) == pytest.approx(0.5 + 0.2)
    assert total(staging, Policy.MANAGED) == pytest.approx(0.4 + 0.25)
    for task in (feature_task(100), staging):
        assert [task.footprint_bytes(policy) for policy in POLICIES] == [200, 100, 100]


def test_an_unknown_constant_affects_only_its_dependents() -> None:
    blind = replace(CONSTANTS, cache_ms_per_byte=math.nan, gpu_flush_ms=math.nan)
    assert not overhead(TASK, Policy.PINNED, blind).is_known
    assert not overhead(TASK, Policy.MANAGED, blind).is_known
    assert overhead(TASK, Policy.DEVICE, blind).is_known
    assert overhead(feature_task(100), Policy.PINNED, blind).is_known  # it has no use for a cache
    assert not overhead(feature_task(100), Policy.PINNED, MachineConstants()).is_known
    nothing = Task("nothing", 0, 0, (), copies=0)
    assert [total(nothing, policy, MachineConstants()) for policy in POLICIES] == [0, 0, 0]


@pytest.mark.parametrize(
    "change", [{"copies": -1}, {"to_host_bytes": -5}, {"execution_ms": -0.1}, {"kernels": (DIRTY, Kernel(-2))}]
)
def test_negative_numbers_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"Task by hand: .* is -.*; it takes 0 or more"):
        replace(TASK, **change)  # type: ignore[arg-type]


def test_each_constant_is_described() -> None:
    assert len({row.symbol for row in ALL_CONSTANTS}) == len(ALL_CONSTANTS) == 12
    assert [row.symbol for row in ALL_CONSTANTS if not row.is_per_byte] == ["Tr_ini", "Ca_cpu", "Ca_gpu"]


@given(drawn_tasks, drawn_machines, st.sampled_from(POLICIES), sizes, drawn_kernels)
def test_more_of_anything_never_costs_less(
    task: Task, machine: MachineConstants, policy: Policy, more: int, kernel: Kernel
) -> None:
    before = overhead(task, policy, machine)
    assert before.idle_ms >= 0
    assert before.busy_ms >= 0
    for grown in (
        replace(task, to_device_bytes=task.to_device_bytes + more),
        replace(task, to_host_bytes=task.to_host_bytes + more),
        replace(task, copies=task.copies + 1),
        replace(task, fresh_host=True),
        replace(task, kernels=(*task.kernels, kernel)),
    ):
        assert overhead(grown, policy, machine).total_ms >= before.total_ms * (1 - 1e-12)


@given(drawn_kernels, drawn_machines, sizes)
def test_more_in_a_kernel_never_costs_less(kernel: Kernel, machine: MachineConstants, more: int) -> None:
    task = Task("t", 0, 0, (kernel,), copies=0)
    for grown in (
        replace(kernel, accessed_bytes=kernel.accessed_bytes + more),
        replace(kernel, written_bytes=kernel.written_bytes + more),
        replace(kernel, cached_bytes=kernel.cached_bytes + more),
        replace(kernel, mapped_bytes=kernel.mapped_bytes + more),
        replace(kernel, launches=kernel.launches + 1),
        replace(kernel, latency_hidden=False),
    ):
        for policy in POLICIES:
            assert total(replace(task, kernels=(grown,)), policy, machine) >= total(task, policy, machine)
