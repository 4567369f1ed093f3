"""The order in which requests wait."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.server.schedule.request import Request, RequestQueue, virtual_deadline_s


def request(number: int, tenant: str = "front", virtual_deadline_s: float = math.inf) -> Request:
    return Request(number, tenant, "m", arrival_s=float(number), virtual_deadline_s=virtual_deadline_s)


def test_earliest_virtual_deadline_is_first_then_first_to_arrive() -> None:
    queue = RequestQueue()
    for number, tenant, deadline_s in ((0, "a", 5.0), (1, "b", 3.0), (2, "c", 5.0), (3, "d", 4.0)):
        queue.add(request(number, tenant, deadline_s))
    assert [waiting.number for waiting in queue] == [1, 3, 0, 2]
    queue.remove([queue[0], queue[2]])
    assert [waiting.number for waiting in queue[:]] == [3, 2]


def test_each_step_of_priority_halves_the_patience() -> None:
    assert virtual_deadline_s(10.0, 0.4, 0) == 10.4
    assert virtual_deadline_s(10.0, 0.4, 1) == 10.2
    assert virtual_deadline_s(10.0, 0.4, -1) == 10.8
    assert virtual_deadline_s(10.0, math.inf, 3) == math.inf
    assert virtual_deadline_s(10.0, 0.0, 3) == 10.0


def test_tenant_with_shorter_patience_keeps_its_order() -> None:
    queue = RequestQueue()
    queue.add(request(0, "a", 9.0))
    queue.add(request(1, "a", 2.0))
    queue.add(request(2, "b", 5.0))
    assert [waiting.number for waiting in queue] == [2, 0, 1]


def test_removed_tenant_takes_its_requests_along() -> None:
    queue = RequestQueue()
    for number, tenant in enumerate("abab"):
        queue.add(request(number, tenant, 9.0 - number))
    assert [removed.number for removed in queue.remove_tenant("a")] == [0, 2]
    assert [waiting.number for waiting in queue] == [1, 3]
    queue.add(request(4, "a", 1.0))
    assert queue[0].number == 4, "a tenant that comes back under the same name starts afresh"


@given(st.lists(st.floats(0, 10), max_size=30), st.data())
def test_remaining_requests_stay_in_order(deadlines_s: list[float], data: st.DataObject) -> None:
    queue = RequestQueue()
    for number, deadline_s in enumerate(deadlines_s):
        queue.add(request(number, str(number), deadline_s))
    removed = data.draw(st.lists(st.sampled_from(queue[:]), unique=True) if deadlines_s else st.just([]))
    expected = [waiting for waiting in queue if waiting not in removed]
    queue.remove(removed)
    assert queue[:] == expected


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 10)), max_size=40))
def test_every_request_waits_once_in_its_tenants_order(arrivals: list[tuple[str, float]]) -> None:
    queue = RequestQueue()
    for number, (tenant, deadline_s) in enumerate(arrivals):
        queue.add(request(number, tenant, deadline_s))
    assert sorted(waiting.number for waiting in queue) == list(range(len(arrivals)))
    order = [waiting.order for waiting in queue]
    assert order == sorted(order)
    for tenant in "abc":
        numbers = [waiting.number for waiting in queue if waiting.tenant == tenant]
        assert numbers == sorted(numbers)
