"""Pairs of §IV-B, under constants that make the arithmetic plain."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from boards import drawn_machines, drawn_tasks
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import overhead
from split_infer_ros.memory_cost.task import Kernel, Task, batch_task
from split_infer_ros.serving.co_run import Machine, Pair, Released, find_pair, release, together_ms
from split_infer_ros.serving.execution_costs import ExecutionCosts, group
from split_infer_ros.serving.request import Request
from split_infer_ros.serving.scheduler import Batch, Rules, decide

# A byte is copied in 1 ms and mapped in 1 ms under M, in 2 under H; a launch under M costs 1 ms besides.
UNIT = MachineConstants(0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0)
D, M = Policy.DEVICE, Policy.MANAGED


def task(name: str, execution_ms: float, data: int = 20) -> Task:
    """O_D = data; O_M = 10 * (3 + 1), of which 30 are idle, so that Eq. 9 holds for 20 bytes of data and more."""
    return Task(name, data, 0, (Kernel(3),) * 10, copies=1, execution_ms=execution_ms)


def test_the_same_task_has_another_policy_beside_a_neighbour() -> None:
    """The paper's example: YOLO_A alone takes D; followed by YOLO_B, the two are co-run under D and M."""
    first, second = task("YOLO_A", 25), task("YOLO_B", 25)
    assert release([first], UNIT) == (Released(first, D),)
    assert release([first, second], UNIT) == (Released(first, D), Released(second, M))


def test_the_first_may_be_the_one_whose_idle_time_is_used() -> None:
    long, short = task("long", 100), task("short", 25, data=1)  # Eq. 9 does not hold for the short one
    assert release([long, short], UNIT) == (Released(long, M), Released(short, D))


def test_a_neighbour_that_recovers_less_than_the_other_loses_stays() -> None:
    """Under M the long one loses 20 to D; Eq. 9 allows it, as 20 could be recovered, but the short one hides 10."""
    long, short = task("long", 100), task("short", 10, data=1)
    assert release([long, short], UNIT) == (Released(long, D),)


def test_of_two_that_could_change_places_the_one_with_less_data_has_it_twice() -> None:
    more, less = task("more", 25, data=21), task("less", 25, data=20)
    assert release([more, less], UNIT) == (Released(more, M), Released(less, D))
    assert release([less, more], UNIT) == (Released(less, D), Released(more, M))


def test_a_pair_takes_what_both_take_but_for_what_is_hidden() -> None:
    assert together_ms(task("a", 25), task("b", 100), UNIT) == 20 + 25 + 40 + 100 - 25
    assert together_ms(task("a", 50), task("b", 100), UNIT) == 20 + 50 + 40 + 100 - 30


@pytest.mark.parametrize("legal", [(D,), (M,), (D, Policy.PINNED)])
def test_without_both_policies_nothing_is_co_run(legal: tuple[Policy, ...]) -> None:
    (alone,) = release([task("a", 25), task("b", 25)], UNIT, legal)
    assert alone.policy in legal


def test_one_task_that_waits_twice_is_two() -> None:
    same = task("same", 25)
    assert [found.policy for found in release([same, same], UNIT)] == [D, M]


timed_tasks = st.builds(lambda drawn, ms: replace(drawn, execution_ms=ms), drawn_tasks, st.floats(0, 1e6))


@given(drawn_machines, st.lists(timed_tasks, min_size=1, max_size=5))
def test_whatever_is_released_is_no_slower_than_each_in_its_best_way(
    machine: MachineConstants, tasks: list[Task]
) -> None:
    released = release(tasks, machine)
    assert released[0].task is tasks[0]
    if len(released) == 2:
        assert {found.policy for found in released} == {D, M}
        (device,), (managed,) = ([found.task for found in released if found.policy is policy] for policy in (D, M))
        apart = [min(overhead(found.task, policy, machine).total_ms for policy in POLICIES) for found in released]
        assert device.execution_ms <= overhead(managed, M, machine).idle_ms
        together = together_ms(device, managed, machine)
        assert together <= (sum(apart) + device.execution_ms + managed.execution_ms) * (1 + 1e-9)


def test_what_does_not_fit_stays_and_a_later_one_may_go_first() -> None:
    first, too_long, fits = task("first", 100, data=1), task("too long", 31, data=1), task("fits", 20)
    assert release([first, too_long], UNIT) == (Released(first, D),)
    assert release([task("f", 100), too_long, fits], UNIT)[1] == Released(fits, D)


def test_where_a_constant_is_not_known_nothing_is_co_run() -> None:
    unknown = replace(UNIT, managed_mapping_ms_per_byte=math.nan)
    assert [found.policy for found in release([task("a", 1), task("b", 1)], unknown)] == [D]


# "s" and "t" are small, "b" and "c" are not; a batch takes 25 ms, two models as one 40
COSTS = ExecutionCosts(
    {"s": 1, "t": 1, "b": 9, "c": 9},
    {model: {1: 0.025, 2: 0.025} for model in "stbc"},
    {group({"s": 1, "t": 1}): 0.04, group({"b": 1, "c": 1}): 0.04},
)


def requests(models: str, deadline_s: float = math.inf) -> list[Request]:
    """One of each tenant, in order; tenants of one model are several."""
    return [Request(place, f"{model}{place}", model, 0.0, deadline_s) for place, model in enumerate(models)]


def pair(queue: list[Request], data: dict[str, int], window: int = 5, fuse: bool = True) -> Pair | None:
    """Beside the batch that is decided on; ``data`` is what each model's batches have, 20 if nothing is said."""
    rules = Rules(window, most=2, fuse=fuse)
    machine = Machine(UNIT, (D, M), lambda batch: task(batch.model, 25, data.get(batch.model, 20)))
    return find_pair(decide(queue, COSTS, 0.0, rules), queue, COSTS, 0.0, rules, machine)


def test_the_batch_that_would_be_next_runs_beside_this_one() -> None:
    s, b = requests("sb")
    assert pair([s, b], {}) == Pair(Batch("s", (s,)), Batch("b", (b,)))
    first, second, b = requests("ssb")
    assert pair([first, second, b], {}) == Pair(Batch("s", (first, second)), Batch("b", (b,)))


def test_the_one_under_device_memory_is_launched_first() -> None:
    s, b = requests("sb")
    found = pair([s, b], {"s": 21})
    assert found is not None
    assert found.policies == ((Batch("b", (b,)), D), (Batch("s", (s,)), M))


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        ("", "nothing waits"),
        ("s", "nobody else waits"),
        ("stb", "two models are this execution"),
        ("sbc", "two models are the next one"),
        ("sss", "it is the same model again"),
        ("sssb", "it is the same model again, and nobody is overtaken for a pair's sake"),
    ],
)
def test_whatever_else_is_next_runs_by_itself(queue: str, why: str) -> None:
    assert pair(requests(queue), {}) is None, why


def test_a_pair_that_does_not_fit_is_none() -> None:
    assert pair(requests("sb"), {"s": 1, "b": 1}) is None, "Eq. 9 does not hold for either"


def test_nobody_misses_a_deadline_for_being_the_second_of_a_pair() -> None:
    """Alone the first is computed in 25 ms; behind the other it is done after 20 + 25 + 40 + 25 - 25 = 85 ms."""
    data = {"s": 21}
    for deadline_s, pairs in ((0.02, True), (0.03, False), (0.084, False), (0.085, True)):
        assert (pair(requests("sb", deadline_s), data) is not None) == pairs, deadline_s
    assert pair(requests("sb", 0.03), {}) is not None, "where it is the first it does not wait"


def test_a_batch_has_its_images_and_its_features() -> None:
    both = batch_task("both", 100, 7, 5.0)
    assert (both.to_device_bytes, both.to_host_bytes, both.execution_ms) == (100, 7, 5.0)
    assert overhead(both, D, UNIT).total_ms == 107
    assert overhead(both, M, UNIT).idle_ms == 107
