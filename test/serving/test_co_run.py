"""Co-run pairs of §IV-B, under constants that make the arithmetic plain."""

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
from split_infer_ros.serving.co_run import CoRunCriteria, CoRunPair, ReleasedTask, co_run_ms, find_pair, release
from split_infer_ros.serving.execution_costs import ExecutionCosts, combination_of
from split_infer_ros.serving.request import Request
from split_infer_ros.serving.scheduler import RequestBatch, Rules, decide

# A byte is copied in 1 ms and mapped in 1 ms under M, in 2 under H; a launch under M costs 1 ms besides.
UNIT = MachineConstants(0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0)
D, M = Policy.DEVICE, Policy.MANAGED


def task(name: str, execution_ms: float, data: int = 20) -> Task:
    """O_D = data; O_M = 10 * (3 + 1), of which 30 are idle, so that Eq. 9 holds for 20 bytes of data and more."""
    return Task(name, data, 0, (Kernel(3),) * 10, copies=1, execution_ms=execution_ms)


def test_task_gets_another_policy_next_to_a_neighbour() -> None:
    """The paper's example: YOLO_A alone takes D; followed by YOLO_B, the two are co-run under D and M."""
    first, second = task("YOLO_A", 25), task("YOLO_B", 25)
    assert release([first], UNIT) == (ReleasedTask(first, D),)
    assert release([first, second], UNIT) == (ReleasedTask(first, D), ReleasedTask(second, M))


def test_first_task_may_be_the_managed_one() -> None:
    long, short = task("long", 100), task("short", 25, data=1)  # Eq. 9 does not hold for the short one
    assert release([long, short], UNIT) == (ReleasedTask(long, M), ReleasedTask(short, D))


def test_pair_that_recovers_less_than_it_loses_is_not_co_run() -> None:
    """Under M the long task loses 20 to D. Eq. 9 allows the pair, because 20 could be recovered; the short hides 10."""
    long, short = task("long", 100), task("short", 10, data=1)
    assert release([long, short], UNIT) == (ReleasedTask(long, D),)


def test_task_with_less_data_is_the_device_one() -> None:
    more, less = task("more", 25, data=21), task("less", 25, data=20)
    assert release([more, less], UNIT) == (ReleasedTask(more, M), ReleasedTask(less, D))
    assert release([less, more], UNIT) == (ReleasedTask(less, D), ReleasedTask(more, M))


def test_pair_takes_what_both_take_less_what_is_hidden() -> None:
    assert co_run_ms(task("a", 25), task("b", 100), UNIT) == 20 + 25 + 40 + 100 - 25
    assert co_run_ms(task("a", 50), task("b", 100), UNIT) == 20 + 50 + 40 + 100 - 30


@pytest.mark.parametrize("legal", [(D,), (M,), (D, Policy.PINNED)])
def test_without_both_policies_nothing_is_co_run(legal: tuple[Policy, ...]) -> None:
    (alone,) = release([task("a", 25), task("b", 25)], UNIT, legal)
    assert alone.policy in legal


def test_task_that_waits_twice_makes_a_pair() -> None:
    same = task("same", 25)
    assert [released.policy for released in release([same, same], UNIT)] == [D, M]


timed_tasks = st.builds(lambda drawn, ms: replace(drawn, execution_ms=ms), drawn_tasks, st.floats(0, 1e6))


@given(drawn_machines, st.lists(timed_tasks, min_size=1, max_size=5))
def test_pair_is_no_slower_than_its_tasks_under_their_best(machine: MachineConstants, tasks: list[Task]) -> None:
    released = release(tasks, machine)
    assert released[0].task is tasks[0]
    if len(released) == 2:
        assert {each.policy for each in released} == {D, M}
        (device,), (managed,) = ([each.task for each in released if each.policy is policy] for policy in (D, M))
        apart_ms = [min(overhead(each.task, policy, machine).total_ms for policy in POLICIES) for each in released]
        assert device.execution_ms <= overhead(managed, M, machine).idle_ms
        pair_ms = co_run_ms(device, managed, machine)
        assert pair_ms <= (sum(apart_ms) + device.execution_ms + managed.execution_ms) * (1 + 1e-9)


def test_later_task_that_fits_overtakes_one_that_does_not() -> None:
    first, too_long, fits = task("first", 100, data=1), task("too long", 31, data=1), task("fits", 20)
    assert release([first, too_long], UNIT) == (ReleasedTask(first, D),)
    assert release([task("f", 100), too_long, fits], UNIT)[1] == ReleasedTask(fits, D)


def test_with_an_unknown_constant_nothing_is_co_run() -> None:
    unknown = replace(UNIT, managed_mapping_ms_per_byte=math.nan)
    assert [released.policy for released in release([task("a", 1), task("b", 1)], unknown)] == [D]


# "s" and "t" are small, "b" and "c" are not; a batch takes 25 ms, two models as one 40
COSTS = ExecutionCosts(
    {"s": 1, "t": 1, "b": 9, "c": 9},
    {model: {1: 0.025, 2: 0.025} for model in "stbc"},
    {combination_of({"s": 1, "t": 1}): 0.04, combination_of({"b": 1, "c": 1}): 0.04},
)


def requests(models: str, deadline_s: float = math.inf) -> list[Request]:
    """One request for each model of the text, in order, each from a tenant of its own."""
    return [
        Request(place, f"{model}{place}", model, arrival_s=0.0, deadline_s=deadline_s)
        for place, model in enumerate(models)
    ]


def pair(queue: list[Request], data: dict[str, int]) -> CoRunPair | None:
    """The pair of the next execution; ``data`` has the bytes of a model's batches, 20 if it has none."""
    rules = Rules(window=5, max_batch_size=2)
    criteria = CoRunCriteria(UNIT, (D, M), lambda batch: task(batch.model, 25, data.get(batch.model, 20)))
    decision = decide(queue, COSTS, now=0.0, rules=rules)
    return find_pair(decision, queue, COSTS, now=0.0, rules=rules, criteria=criteria)


def test_next_batch_is_co_run_with_this_one() -> None:
    s, b = requests("sb")
    assert pair([s, b], {}) == CoRunPair(RequestBatch("s", (s,)), RequestBatch("b", (b,)))
    first, second, b = requests("ssb")
    assert pair([first, second, b], {}) == CoRunPair(RequestBatch("s", (first, second)), RequestBatch("b", (b,)))


def test_batch_under_device_memory_is_launched_first() -> None:
    s, b = requests("sb")
    found = pair([s, b], {"s": 21})
    assert found is not None
    assert found.policies == ((RequestBatch("b", (b,)), D), (RequestBatch("s", (s,)), M))


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        ("", "nothing waits"),
        ("s", "no other model waits"),
        ("stb", "this execution has two models"),
        ("sbc", "the next execution has two models"),
        ("sss", "the next execution has the same model"),
        ("sssb", "the next execution has the same model, and is not overtaken for a pair"),
    ],
)
def test_other_executions_are_no_pair(queue: str, why: str) -> None:
    assert pair(requests(queue), {}) is None, why


def test_pair_that_does_not_fit_is_none() -> None:
    assert pair(requests("sb"), {"s": 1, "b": 1}) is None, "Eq. 9 does not hold for either"


def test_second_of_a_pair_misses_no_deadline() -> None:
    """The first batch takes 25 ms alone. Behind the other one it is done after 20 + 25 + 40 + 25 - 25 = 85 ms."""
    data = {"s": 21}
    for deadline_s, is_pair in ((0.02, True), (0.03, False), (0.084, False), (0.085, True)):
        assert (pair(requests("sb", deadline_s), data) is not None) == is_pair, deadline_s
    assert pair(requests("sb", 0.03), {}) is not None, "the first of a pair does not wait"


def test_batch_task_has_images_and_features() -> None:
    both = batch_task("both", 100, 7, 5.0)
    assert (both.to_device_bytes, both.to_host_bytes, both.execution_ms) == (100, 7, 5.0)
    assert overhead(both, D, UNIT).total_ms == 107
    assert overhead(both, M, UNIT).idle_ms == 107
