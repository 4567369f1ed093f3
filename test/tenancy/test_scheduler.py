"""What runs next, on timelines drawn by hand, and whatever comes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.tenancy.costs import Costs, group
from split_infer_ros.tenancy.request import DROP, FINISH, Request, RequestQueue, turn_s
from split_infer_ros.tenancy.scheduler import Decision, Rules, decide

# the mean of their parameters is 40: a and b are small, c and d are large
PARAMETERS = {"a": 10, "b": 20, "c": 60, "d": 70}
COSTS = Costs(
    PARAMETERS,
    {"a": {1: 1.0, 2: 1.5, 4: 2.0}, "b": {1: 1.0, 2: 1.5}, "c": {1: 4.0, 4: 10.0}, "d": {1: 4.0, 2: 8.0}},
    {group({"a": 1, "b": 1}): 1.6, group({"c": 1, "d": 1}): 9.0},
)
RULES = Rules(window=5)


def queue_of(*rows: tuple[str, str] | tuple[str, str, float, str]) -> RequestQueue:
    """Requests in the order of their coming: tenant, model, and a deadline and what then, if there is one."""
    queue = RequestQueue()
    for number, (tenant, model, *rest) in enumerate(rows):
        deadline, when_late = rest or (math.inf, FINISH)
        queue.add(Request(number, tenant, model, 0.0, deadline, float(number), when_late))  # type: ignore[arg-type]
    return queue


def plan(decision: Decision) -> dict[str, list[int]]:
    return {batch.model: [request.number for request in batch.requests] for batch in decision.batches}


def drain(queue: RequestQueue, costs: Costs = COSTS, rules: Rules = RULES) -> list[dict[str, list[int]]]:
    """All executions until nothing waits; time does not pass."""
    found = []
    while decision := decide(queue, costs, 0.0, rules):
        if not decision.requests:
            break
        found.append(plan(decision))
        queue.remove(decision.requests)
    return found


def test_requests_of_one_model_are_one_batch_and_small_models_one_execution() -> None:
    """The paper's Fig. 3: five requests over three models take two executions."""
    rows = [("1", "c"), ("2", "a"), ("3", "b"), ("4", "c"), ("5", "b")]
    assert drain(queue_of(*rows)) == [{"c": [0, 3]}, {"a": [1], "b": [2, 4]}]


def test_merge_alone_takes_an_execution_a_model() -> None:
    rows = [("1", "c"), ("2", "a"), ("3", "b"), ("4", "c"), ("5", "b")]
    assert drain(queue_of(*rows), rules=Rules(fuse=False)) == [{"c": [0, 3]}, {"a": [1]}, {"b": [2, 4]}]


def test_nothing_waits_for_company() -> None:
    assert plan(decide(queue_of(("1", "a")), COSTS, 0.0, RULES)) == {"a": [0]}
    assert decide(RequestQueue(), COSTS, 0.0, RULES) == Decision()


def test_what_came_meanwhile_joins_what_was_left_of_a_window() -> None:
    queue = queue_of(("1", "a"), ("2", "c"))
    first = decide(queue, COSTS, 0.0, RULES)
    assert plan(first) == {"a": [0]}
    queue.remove(first.requests)
    queue.add(Request(2, "3", "c", 0.0, turn_s=2.0))
    assert plan(decide(queue, COSTS, 0.0, RULES)) == {"c": [1, 2]}


def test_beyond_the_window_and_beyond_the_largest_batch_nothing_is_taken() -> None:
    queue = queue_of(*[(str(tenant), "a") for tenant in range(7)])
    assert plan(decide(queue, COSTS, 0.0, Rules(window=3))) == {"a": [0, 1, 2]}
    assert plan(decide(queue, COSTS, 0.0, Rules(window=7, most=2))) == {"a": [0, 1]}


def test_models_whose_fusion_is_slower_than_their_turns_are_not_fused() -> None:
    assert drain(queue_of(("1", "c"), ("2", "d"))) == [{"c": [0]}, {"d": [1]}]


@pytest.mark.parametrize(("deadline", "expected"), [(1.2, {"a": [0]}), (2.0, {"a": [0], "b": [1]})])
def test_nobody_misses_a_deadline_for_companys_sake(deadline: float, expected: dict[str, list[int]]) -> None:
    queue = queue_of(("1", "a", deadline, FINISH), ("2", "b"))
    assert plan(decide(queue, COSTS, 0.0, RULES)) == expected


def test_a_request_that_is_late_in_any_case_takes_company() -> None:
    queue = queue_of(("1", "a", 0.5, FINISH), ("2", "b"))
    assert plan(decide(queue, COSTS, 0.0, RULES)) == {"a": [0], "b": [1]}


def test_what_cannot_meet_its_deadline_is_dropped_if_its_tenant_says_so() -> None:
    queue = queue_of(("1", "a", 0.9, DROP), ("2", "a", 0.9, FINISH), ("3", "a", 1.0, DROP), ("4", "a", 5.0, DROP))
    decision = decide(queue, COSTS, 0.0, RULES)
    assert [request.number for request in decision.late] == [0]
    # the second is late anyway; with the third it would be late for the third, which has its turn next
    assert plan(decision) == {"a": [1, 3]}


def test_of_a_tenant_whose_frame_stays_all_later_ones_stay() -> None:
    queue = queue_of(("1", "a"), ("2", "a", 1.2, DROP), ("2", "a", 9.0, DROP), ("3", "a"))
    assert plan(decide(queue, COSTS, 0.0, RULES)) == {"a": [0, 3]}


arrivals = st.lists(
    st.tuples(st.sampled_from("uvwxyz"), st.floats(0, 5), st.floats(0.0, 8), st.sampled_from([DROP, FINISH])),
    max_size=30,
)
MODEL_OF = dict(zip("uvwxyz", "aabbcd", strict=True))


@given(arrivals, st.integers(1, 8), st.booleans())
def test_whatever_comes_each_request_has_one_end_in_order_and_the_processor_never_rests(
    rows: list[tuple[str, float, float, str]], window: int, fuse: bool
) -> None:
    rules, now, number = Rules(window, 4, fuse), 0.0, 0
    coming = sorted((arrival, tenant, patience, late) for tenant, arrival, patience, late in rows)
    queue, ended, late = RequestQueue(), [], []
    while coming or len(queue):
        if not len(queue):
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            arrival, tenant, patience, when_late = coming.pop(0)
            deadline = arrival + patience
            turn = turn_s(arrival, patience, 0)
            queue.add(Request(number, tenant, MODEL_OF[tenant], arrival, deadline, turn, when_late))
            number += 1
        decision = decide(queue, COSTS, now, rules)
        assert decision.requests or decision.late, "work-conserving"
        first = next((waiting for waiting in queue if waiting not in decision.late), None)
        if first is not None:
            assert first in decision.requests, "the first is served"
        assert len({COSTS.is_small(batch.model) for batch in decision.batches}) <= 1
        assert all(len(batch.requests) <= 4 for batch in decision.batches)
        assert len(decision.requests) <= window
        assert fuse or len(decision.batches) <= 1
        queue.remove([*decision.requests, *decision.late])
        ended += decision.requests
        late += decision.late
        now += COSTS.execution_s({batch.model: len(batch.requests) for batch in decision.batches})
    assert sorted(request.number for request in [*ended, *late]) == list(range(number))
    assert all(request.when_late == DROP for request in late)
    for tenant in MODEL_OF:
        mine = [request.number for request in ended if request.tenant == tenant]
        assert mine == sorted(mine)


def starved_for(patience: float, flood: Sequence[float]) -> float:
    """How long a request with that patience waits while others, each more urgent, come at these intervals."""
    queue, now, number = RequestQueue(), 0.0, 1
    queue.add(Request(0, "patient", "c", 0.0, patience, patience))
    times = iter([sum(flood[:index]) for index in range(len(flood))])
    upcoming = next(times, math.inf)
    while True:
        while upcoming <= now:
            queue.add(Request(number, "flood", "a", upcoming, upcoming + 0.1, upcoming + 0.1))
            number, upcoming = number + 1, next(times, math.inf)
        decision = decide(queue, COSTS, now, Rules(window=1))
        if any(request.tenant == "patient" for request in decision.requests):
            return now
        queue.remove(decision.requests)
        now += 1.0


@given(st.floats(0.5, 20), st.lists(st.floats(0.2, 2.0), min_size=60, max_size=60))
def test_nobody_starves(patience: float, flood: list[float]) -> None:
    """What comes later than the turn of a request comes behind it: it waits for those before it, and no others."""
    before = sum(sum(flood[:index]) + 0.1 <= patience for index in range(len(flood)))
    assert starved_for(patience, flood) <= before * 1.0 + 1.0
