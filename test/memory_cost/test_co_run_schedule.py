"""What is released to the GPU, under constants that make the arithmetic plain."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from assumed_boards import drawn_machines, drawn_tasks
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.assignment import recovers
from split_infer_ros.memory_cost.co_run_schedule import ReleasedTask, co_run_ms, device_ends_ms, release
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import overhead, response_ms
from split_infer_ros.memory_cost.task import Kernel, Task

# A byte is copied in 1 ms and mapped in 1 ms under M, in 2 under H; a launch under M costs 1 ms besides.
UNIT = MachineConstants(0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
D, M = Policy.DEVICE, Policy.MANAGED


def task(name: str, execution_ms: float, data: int = 20) -> Task:
    """O_D = data; O_M = 10 * (3 + 1), of which 30 are idle, so that Eq. 9 holds for 20 bytes of data and more."""
    kernels = (Kernel(3, mapped_bytes=3, launches=10),)
    return Task(name, data, 0, kernels, copies=1, execution_ms=execution_ms)


def test_task_gets_another_policy_next_to_a_neighbour() -> None:
    """The paper's example: YOLO_A alone takes D; followed by YOLO_B, the two are co-run under D and M."""
    first, second = task("YOLO_A", 25), task("YOLO_B", 25)
    assert release([first], UNIT) == (ReleasedTask(first, D),)
    assert release([first, second], UNIT) == (ReleasedTask(first, D), ReleasedTask(second, M))


def test_first_task_may_be_the_managed_one() -> None:
    """The pair ends after 1 + 25 + 40 + 100 - 25 = 141 ms, and the long task alone after 20 + 100."""
    long, short = task("long", 100), task("short", 25, data=1)  # Eq. 9 does not hold for the short one
    assert release([long, short], UNIT, latest_ms=[141, 150]) == (ReleasedTask(long, M), ReleasedTask(short, D))
    assert release([long, short], UNIT, latest_ms=[140, 150]) == (ReleasedTask(long, D),)
    assert release([long, short], UNIT) == (ReleasedTask(long, D),), "it would end later than under device memory"


def test_no_task_behind_a_pair_ends_later() -> None:
    """Under D the three end after 45, 95 and 140 ms. The pair of the outer two takes 45 + 65 - 25 = 85 ms."""
    tasks = [task("first", 25), task("no data", 30, data=1), task("last", 25)]
    assert release([tasks[0], tasks[2]], UNIT) == (ReleasedTask(tasks[0], D), ReleasedTask(tasks[2], M))
    assert len(release(tasks, UNIT)) == 1, "the middle one would end after 85 + 31 ms instead of 76"
    assert len(release(tasks, UNIT, latest_ms=[45, 116, 200])) == 2
    assert len(release(tasks, UNIT, latest_ms=[45, 115, 200])) == 1


def test_spare_time_is_spent_on_a_switch() -> None:
    """A switch costs 20 ms. Eq. 11 allows one of the two, and the time behind the first decides which."""
    tasks = [task("a", 100), task("b", 100)]
    assert release(tasks, UNIT) == (ReleasedTask(tasks[0], D),)
    assert release(tasks, UNIT, latest_ms=[140, 260]) == (ReleasedTask(tasks[0], M),)
    assert release(tasks, UNIT, latest_ms=[139, 260]) == (ReleasedTask(tasks[0], D),)
    assert release(tasks, UNIT, latest_ms=[140, 259]) == (ReleasedTask(tasks[0], D),)
    assert release(tasks[:1], UNIT, latest_ms=[140]) == (ReleasedTask(tasks[0], D),), "no kernel of D would be left"


def test_pair_leaves_enough_kernels_of_device() -> None:
    """Eq. 11: the managed task has 10 kernels, so the other one needs as many."""
    few = replace(task("few", 25), kernels=(Kernel(3, mapped_bytes=3, launches=9),))
    enough, second = task("enough", 25), task("second", 25)
    latest_ms = [1e3, 1e3]
    assert len(release([enough, second], UNIT, [D, M], latest_ms=latest_ms)) == 2
    released = release([few, second], UNIT, [D, M], latest_ms=latest_ms)
    assert [each.task.name for each in released if each.policy is M] == ["few"]


def test_only_partners_are_co_run() -> None:
    tasks = [task(name, 25) for name in "abc"]
    latest_ms = [1e3] * 3
    assert [each.task.name for each in release(tasks, UNIT, latest_ms=latest_ms, partners=[2])] == ["a", "c"]
    assert len(release(tasks, UNIT, partners=[])) == 1


def test_task_with_less_data_is_the_device_one() -> None:
    more, less = task("more", 25, data=21), task("less", 25, data=20)
    for pair in ([more, less], [less, more]):
        released = release(pair, UNIT, latest_ms=[1e3, 1e3])
        assert [(each.task.name, each.policy) for each in released] == [
            (each.name, M if each is more else D) for each in pair
        ]


def test_pair_takes_what_both_take_less_what_is_hidden() -> None:
    assert co_run_ms(task("a", 25), task("b", 100), UNIT) == 20 + 25 + 40 + 100 - 25
    assert co_run_ms(task("a", 50), task("b", 100), UNIT) == 20 + 50 + 40 + 100 - 30


@pytest.mark.parametrize("legal", [(D,), (M,), (D, Policy.PINNED)])
def test_without_both_policies_nothing_is_co_run(legal: Sequence[Policy]) -> None:
    assert len(release([task("a", 25), task("b", 25)], UNIT, legal, latest_ms=[1e3, 1e3])) == 1


def test_kernels_that_do_not_fit_into_the_idle_time_are_not_co_run() -> None:
    first, too_long = task("first", 31), task("too long", 31)
    assert len(release([first, too_long], UNIT, latest_ms=[1e3, 1e3])) == 1
    assert len(release([task("first", 30), too_long], UNIT, latest_ms=[1e3, 1e3])) == 2


def test_with_an_unknown_constant_nothing_is_co_run() -> None:
    unknown = replace(UNIT, managed_mapping_ms_per_byte=math.nan)
    assert [released.policy for released in release([task("a", 1), task("b", 1)], unknown)] == [D]


timed_tasks = st.builds(
    lambda drawn, ms, name: replace(drawn, execution_ms=ms, name=str(name)),
    drawn_tasks,
    st.floats(0, 1e6),
    st.integers(),
)


@given(drawn_machines, st.lists(timed_tasks, min_size=1, max_size=5, unique_by=lambda each: each.name))
def test_served_one_after_the_other_no_task_ends_later_than_under_device(
    machine: MachineConstants, tasks: list[Task]
) -> None:
    """The rounding of sums is the only difference that is allowed, so the bound is relative to the largest time."""
    latest_ms = dict(zip([each.name for each in tasks], device_ends_ms(tasks, machine), strict=True))
    clock, waiting = 0.0, list(tasks)
    tolerance = 1e-9 * max(latest_ms.values())
    while waiting:
        released = release(waiting, machine, latest_ms=[latest_ms[each.name] - clock for each in waiting])
        assert released[0].task is waiting[0]
        ends = [response_ms(each.task, overhead(each.task, each.policy, machine)) for each in released]
        if len(released) == 2:
            by_policy = {each.policy: each.task for each in released}
            assert set(by_policy) == {D, M}
            assert by_policy[D].execution_ms <= overhead(by_policy[M], M, machine).idle_ms
            pair_ms = co_run_ms(by_policy[D], by_policy[M], machine)
            ends = [end if each.policy is D else pair_ms for end, each in zip(ends, released, strict=True)]
        for each, end in zip(released, ends, strict=True):
            assert clock + end <= latest_ms[each.task.name] + tolerance
            overheads = {policy: overhead(each.task, policy, machine) for policy in POLICIES}
            best_ms = min(found.total_ms for found in overheads.values())
            is_switched = each.policy is not D and overheads[D].total_ms == best_ms < overheads[each.policy].total_ms
            assert not is_switched or recovers(overheads, each.policy), "Guideline 1"
            waiting.remove(each.task)
        clock += max(ends)


def test_ends_under_device_memory() -> None:
    assert device_ends_ms([task("a", 25), task("b", 5, data=1)], UNIT) == list(itertools.accumulate([45.0, 6.0]))
