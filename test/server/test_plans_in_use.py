"""Plans stay open while they are in force, have batches in flight, or are held by a contest."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.plans_in_use import PlansInUse


class Pool:
    """A pool whose slots in use a test sets."""

    def __init__(self) -> None:
        self.leases = SimpleNamespace(used=0)

    def collect(self, now: float) -> list[tuple[Lease, Outcome]]:
        return []


@dataclass(eq=False)
class FakePlan:
    """A plan with a pool, and how often it was closed."""

    pool: Any = field(default_factory=Pool)
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


def plans_in_use() -> PlansInUse:
    return PlansInUse(threading.Condition(), lambda lease, outcome: None)


def as_plan(fake: FakePlan) -> Plan:
    return cast(Plan, fake)


def test_an_earlier_plan_is_closed_once_its_batches_are_back() -> None:
    plans, first, second = plans_in_use(), FakePlan(), FakePlan()
    plans.use(as_plan(first))
    first.pool.leases.used = 1
    plans.use(as_plan(second))
    plans.collect(0.0)
    assert first.closed == 0
    first.pool.leases.used = 0
    plans.collect(0.0)
    assert (first.closed, second.closed) == (1, 0)


def test_a_held_plan_stays_open_without_batches() -> None:
    plans, first, second = plans_in_use(), FakePlan(), FakePlan()
    plans.use(as_plan(first))
    for fake in (first, second):
        plans.hold(as_plan(fake))
    for fake in (second, first, second):
        plans.use(as_plan(fake))
        plans.collect(0.0)
        assert plans.current is as_plan(fake)
    for fake in (first, second):
        plans.release(as_plan(fake))
    plans.collect(0.0)
    assert (first.closed, second.closed) == (1, 0)


def test_a_held_plan_that_never_ran_is_closed_when_it_is_released() -> None:
    plans, first, second = plans_in_use(), FakePlan(), FakePlan()
    plans.use(as_plan(first))
    plans.hold(as_plan(second))
    plans.release(as_plan(second))
    assert second.closed == 1


def test_plans_that_share_slots_are_closed_only_once() -> None:
    plans, first = plans_in_use(), FakePlan()
    other, last = FakePlan(first.pool), FakePlan()
    plans.use(as_plan(first))
    for fake in (first, other):
        plans.hold(as_plan(fake))
    plans.use(as_plan(other))
    for fake in (first, other):
        plans.release(as_plan(fake))
    plans.collect(0.0)
    assert first.closed + other.closed == 0
    plans.use(as_plan(last))
    plans.collect(0.0)
    assert first.closed + other.closed == 1


def test_a_model_that_is_removed_during_a_contest_frees_both_plans_once() -> None:
    plans, first, second = plans_in_use(), FakePlan(), FakePlan()
    plans.use(as_plan(first))
    for fake in (first, second):
        plans.hold(as_plan(fake))
    plans.close()
    for fake in (first, second):
        plans.release(as_plan(fake))
    assert (first.closed, second.closed) == (1, 1)


@given(st.lists(st.tuples(st.sampled_from(["use", "hold", "release", "collect"]), st.integers(0, 3)), max_size=40))
def test_no_plan_in_force_or_held_is_closed_and_none_is_closed_twice(steps: list[tuple[str, int]]) -> None:
    plans, fakes = plans_in_use(), [FakePlan() for _ in range(4)]
    held: list[int] = []
    current = 0
    plans.use(as_plan(fakes[0]))
    for step, index in steps:
        if step == "release" and index in held:
            held.remove(index)
            plans.release(as_plan(fakes[index]))
        elif step == "collect":
            plans.collect(0.0)
        elif step in ("use", "hold") and not fakes[index].closed:
            if step == "use":
                plans.use(as_plan(fakes[index]))
                current = index
            else:
                plans.hold(as_plan(fakes[index]))
                held.append(index)
        assert all(not fakes[index].closed for index in {current, *held})
    plans.close()
    for index in held:
        plans.release(as_plan(fakes[index]))
    assert max(fake.closed for fake in fakes) == 1
    assert all(fakes[index].closed for index in {current, *held})
