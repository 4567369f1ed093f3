from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from assumed_boards import AGX, AUTOWARE, TABLE_IV, TX2
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.assignment import Assignment, assign, loss_ms, max_switched, recovers
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import overhead
from split_infer_ros.memory_cost.task import Kernel, Task

D, M, H = POLICIES
# A byte is copied in 1 ms and mapped in 1 ms under M, in 2 under H; a launch under M costs 1 ms besides.
UNIT = MachineConstants(0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0)


def task(name: str, data: int, accessed: int, kernels: int = 1, cached: int = 0) -> Task:
    """O_D = data, O_M = kernels * (accessed + 1), O_H = kernels * (2 * accessed + cached)."""
    kernel = Kernel(accessed, mapped_bytes=accessed, cached_bytes=cached, launches=kernels)
    return Task(name, data, 0, (kernel,), copies=1)


def policies(found: tuple[Assignment, ...]) -> list[Policy]:
    return [each.policy for each in found]


@pytest.mark.parametrize(("data", "holds"), [(19, False), (20, True), (21, True)])
def test_eq_9_bounds_the_loss_of_managed(data: int, holds: bool) -> None:
    """O_M - O_D = (30 + 10) - data <= I - Ca_cpu - Ca_gpu = 30 - 10."""
    overheads = {policy: overhead(task("t", data, 3, kernels=10), policy, UNIT) for policy in POLICIES}
    assert loss_ms(overheads, M) == 40 - data
    assert overheads[M].recoverable_ms == 20
    assert recovers(overheads, M) is holds


@pytest.mark.parametrize(("data", "holds"), [(7, False), (8, True), (9, True)])
def test_eq_10_bounds_the_loss_of_pinned(data: int, holds: bool) -> None:
    """O_H - O_D = (6 + 4) - data <= I - T_c = 6 - 4."""
    overheads = {policy: overhead(task("t", data, 3, cached=4), policy, UNIT) for policy in POLICIES}
    assert loss_ms(overheads, H) == 10 - data
    assert overheads[H].recoverable_ms == 2
    assert recovers(overheads, H) is holds


@pytest.mark.parametrize(("device", "others", "room"), [(2, 0, 1), (3, 0, 1), (10, 4, 3), (4, 4, 0), (1, 5, 0)])
def test_eq_11_bounds_the_switched_kernels(device: int, others: int, room: int) -> None:
    assert max_switched(device, others) == room
    assert others + room <= device - room or room == 0


def test_two_equal_tasks_become_d_and_m() -> None:
    """As in Fig. 3, although each alone is fastest under D. Both save the same, so their order decides."""
    found = assign([task("one", 10, 10), task("two", 10, 10)], UNIT)
    assert policies(found) == [M, D]
    assert found[0].reason == (
        "managed: 1 ms are lost, of which overlap recovers 9 ms (Eq. 9), "
        "and enough kernels of policy device remain (Eq. 11)."
    )
    assert found[1].reason == (
        "device: of managed 1 ms are lost, of which overlap recovers 9 ms (Eq. 9), "
        "but too few kernels of policy device would remain (Eq. 11: of 1, 1 may be switched)."
    )
    assert policies(assign([task("alone", 10, 10)], UNIT)) == [D]


@pytest.mark.parametrize(
    ("running", "expected"),
    [([], D), ([D], M), ([M], D), ([D, M], D), ([D, D, M], M)],
    ids=lambda value: str(value.value if isinstance(value, Policy) else [policy.value for policy in value]),
)
def test_a_new_task_is_switched_if_enough_others_are_device(running: list[Policy], expected: Policy) -> None:
    others = [(task("other", 10, 10), policy) for policy in running]
    (found,) = assign([task("new", 10, 10)], UNIT, running=others)
    assert (found.policy, found.switched) == (expected, expected is M)


def test_tasks_that_lose_nothing_are_not_bounded() -> None:
    """Also as in Fig. 3: both instances of NW are fastest under M."""
    found = assign([task("one", 20, 3), task("two", 20, 3)], UNIT)
    assert policies(found) == [M, M]
    assert found[0].reason.endswith("pinned 6 ms; nothing to switch.")


def test_a_loss_beyond_recovery_is_not_switched() -> None:
    found = assign([task("t", 15, 3, kernels=10, cached=9), task("other", 15, 3, kernels=10, cached=9)], UNIT)
    assert policies(found) == [D, D]
    assert found[0].reason == (
        "device: managed would lose 25 ms, and overlap recovers 20 ms (Eq. 9); "
        "pinned would lose 135 ms, and overlap recovers -30 ms (Eq. 10)."
    )
    assert assign([task("t", 1, 1)], UNIT, [D])[0].reason == "device: no other policy is legal and known here."


def test_the_switches_that_save_most_memory_are_chosen() -> None:
    few = task("little data", 10, 10, kernels=1)
    much = task("much data", 40, 15, kernels=3)
    rest = task("many kernels", 1, 1, kernels=2)
    assert policies(assign([few, much, rest], UNIT)) == [D, M, D]


def test_the_cheaper_of_managed_and_pinned_is_chosen() -> None:
    """The loss is 11 + 1 - 11 under M and 22 - 11 under H. Both are recovered. If only H is legal, H is chosen."""
    pair = [task("one", 11, 11), task("two", 11, 11)]
    assert policies(assign(pair, UNIT)) == [M, D]
    assert policies(assign(pair, UNIT, [D, H])) == [H, D]
    cheap = replace(UNIT, pinned_mapping_ms_per_byte=1.05)
    assert policies(assign(pair, cheap)) == [H, D]


def test_fig_9_assigns_all_benchmarks_as_the_paper_does() -> None:
    """On TX2, only Gaussian stays D. On AGX, NW, Pathfinder and Gaussian stay D."""
    benchmarks = [each for each in TABLE_IV if each.name != "DJI Drone"]
    for machine, expected in ((TX2, {"Gaussian"}), (AGX, {"Gaussian", "NW", "Pathfinder"})):
        assert {each.task.name for each in assign(benchmarks, machine) if each.policy is D} == expected


def test_table_iv_assigns_autoware_as_the_paper_does() -> None:
    """Autoware's three modules are D, M and M. Each alone would be D."""
    assert [assign([module], TX2)[0].policy for module in AUTOWARE] == [D, D, D]
    assert policies(assign(AUTOWARE, TX2)) == [D, M, M]


small = st.integers(0, 30)
small_tasks = st.builds(task, st.just("t"), small, small, st.integers(1, 5), small)


@given(st.lists(small_tasks, max_size=6), st.sets(st.sampled_from(POLICIES), min_size=1))
def test_no_other_assignment_is_better(some: list[Task], legal: set[Policy]) -> None:
    found = assign(some, UNIT, legal)
    starts = [assign([each], UNIT, legal)[0] for each in some]  # of one task none can be switched
    options = [
        {start.policy} | {p for p in (M, H) if start.policy is D and p in legal and recovers(start.overheads, p)}
        for start in starts
    ]
    ranks = {
        chosen: (
            sum(each.footprint_bytes(p) for each, p in zip(some, chosen, strict=True)),
            sum(start.overheads[p].total_ms for start, p in zip(starts, chosen, strict=True)),
        )
        for chosen in itertools.product(*options)
        if all(p is start.policy for p, start in zip(chosen, starts, strict=True)) or enough_on_device(some, chosen)
    }
    assert ranks[tuple(policies(found))] == min(ranks.values())


def enough_on_device(some: list[Task], chosen: tuple[Policy, ...]) -> bool:
    counts = [(each.num_kernels, policy is D) for each, policy in zip(some, chosen, strict=True)]
    return sum(n for n, on_device in counts if not on_device) <= sum(n for n, on_device in counts if on_device)
