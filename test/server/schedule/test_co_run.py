"""Pairs of executions that are co-run, under constants that make the arithmetic plain."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.task import Kernel, Task
from split_infer_ros.server.schedule.co_run import MAX_EXECUTIONS, CoRunCriteria, CoRunPair, find_pair
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts, combination_of
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.scheduler import RequestBatch, Rules, decide

# A byte is copied in 1 ms and mapped in 1 ms under M, in 2 under H; a launch under M costs 1 ms besides.
UNIT = MachineConstants(0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
D, M = Policy.DEVICE, Policy.MANAGED


def task(name: str, execution_ms: float, data: int = 20) -> Task:
    """O_D = data; O_M = 10 * (3 + 1), of which 30 are idle, so that Eq. 9 holds for 20 bytes of data and more."""
    return Task(name, data, 0, (Kernel(3, mapped_bytes=3, launches=10),), copies=1, execution_ms=execution_ms)


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
    """Alone, s takes 60 + 25 ms under device memory, and 40 + 25 under managed memory. So it has 20 ms to spare."""
    s, b = requests("sb")
    found = pair([s, b], {"s": 60})
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
        ("sssb", "the next execution has the same model, and would end later than under device memory"),
    ],
)
def test_other_executions_are_no_pair(queue: str, why: str) -> None:
    assert pair(requests(queue), {}) is None, why


def test_whole_queue_is_looked_at() -> None:
    """The third request ends after 85 + 65 ms instead of 130. Under device memory it would end after 170."""
    queue = requests("sssb")
    first, second, third, b = queue
    found = CoRunPair(device=RequestBatch("b", (b,)), managed=RequestBatch("s", (first, second)))
    assert pair(queue, {"s": 60}) == found
    assert pair([first, second, replace(third, deadline_s=0.14), b], {"s": 60}) is None, "it would miss its deadline"
    assert pair([first, second, replace(third, deadline_s=0.12), b], {"s": 60}) == found, "it misses it anyway"


def test_first_execution_of_a_model_is_the_partner() -> None:
    queue = requests("sbbb")
    found = pair(queue, {})
    assert found is not None
    assert [request.number for request in found.managed.requests] == [1, 2]


def test_long_queue_is_looked_at_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = requests("s" * (2 * MAX_EXECUTIONS) + "b")
    assert pair(queue, {"s": 2000}) is None
    assert pair(queue[2:], {"s": 2000}) is not None


def test_pair_that_does_not_fit_is_none() -> None:
    assert pair(requests("sb"), {"s": 1, "b": 1}) is None, "Eq. 9 does not hold for either"


def test_first_of_a_pair_misses_no_deadline() -> None:
    """The first batch takes 65 ms alone. As the managed one of a pair it is done after 20 + 25 + 40 + 25 - 25 ms."""
    for deadline_s, is_pair in ((0.064, True), (0.066, False), (0.084, False), (0.085, True)):
        assert (pair(requests("sb", deadline_s), {"s": 60}) is not None) == is_pair, deadline_s
