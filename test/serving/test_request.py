"""The order in which requests have their turn."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.serving.request import Request, RequestQueue, turn_s


def request(number: int, tenant: str = "front", turn: float = math.inf) -> Request:
    return Request(number, tenant, "m", arrival_s=float(number), turn_s=turn)


def test_the_earliest_turn_is_first_and_of_equals_the_first_to_come() -> None:
    queue = RequestQueue()
    for number, tenant, turn in ((0, "a", 5.0), (1, "b", 3.0), (2, "c", 5.0), (3, "d", 4.0)):
        queue.add(request(number, tenant, turn))
    assert [waiting.number for waiting in queue] == [1, 3, 0, 2]
    queue.remove([queue[0], queue[2]])
    assert [waiting.number for waiting in queue[:]] == [3, 2]


def test_a_priority_higher_by_one_halves_the_patience() -> None:
    assert turn_s(10.0, 0.4, 0) == 10.4
    assert turn_s(10.0, 0.4, 1) == 10.2
    assert turn_s(10.0, 0.4, -1) == 10.8
    assert turn_s(10.0, math.inf, 3) == math.inf
    assert turn_s(10.0, 0.0, 3) == 10.0


def test_a_tenant_whose_patience_was_shortened_does_not_overtake_its_own() -> None:
    queue = RequestQueue()
    queue.add(request(0, "a", 9.0))
    queue.add(request(1, "a", 2.0))
    queue.add(request(2, "b", 5.0))
    assert [waiting.number for waiting in queue] == [2, 0, 1]


def test_a_tenant_that_goes_takes_its_requests_along() -> None:
    queue = RequestQueue()
    for number, tenant in enumerate("abab"):
        queue.add(request(number, tenant, 9.0 - number))
    assert [gone.number for gone in queue.forget("a")] == [0, 2]
    assert [waiting.number for waiting in queue] == [1, 3]
    queue.add(request(4, "a", 1.0))
    assert queue[0].number == 4, "who comes back under the same name starts afresh"


@given(st.lists(st.floats(0, 10), max_size=30), st.data())
def test_those_who_are_removed_are_gone_and_the_others_stay_in_order(turns: list[float], data: st.DataObject) -> None:
    queue = RequestQueue()
    for number, turn in enumerate(turns):
        queue.add(request(number, str(number), turn))
    going = data.draw(st.lists(st.sampled_from(queue[:]), unique=True) if turns else st.just([]))
    expected = [waiting for waiting in queue if waiting not in going]
    queue.remove(going)
    assert queue[:] == expected


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 10)), max_size=40))
def test_every_request_waits_once_and_a_tenants_own_stay_in_order(arrivals: list[tuple[str, float]]) -> None:
    queue = RequestQueue()
    for number, (tenant, turn) in enumerate(arrivals):
        queue.add(request(number, tenant, turn))
    assert sorted(waiting.number for waiting in queue) == list(range(len(arrivals)))
    turns = [waiting.order for waiting in queue]
    assert turns == sorted(turns)
    for tenant in "abc":
        mine = [waiting.number for waiting in queue if waiting.tenant == tenant]
        assert mine == sorted(mine)
