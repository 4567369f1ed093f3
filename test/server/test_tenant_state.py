"""Which frames wait, and which give way."""

from __future__ import annotations

from brightness_models import frame
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.server.tenant_state import TenantFrame, TenantState, WaitingFrames, drop


def arrive(waiting: WaitingFrames, member: TenantState, value: int, now: float) -> list[TenantFrame]:
    pixels, origin = frame(value % 256, member.tenant.name)
    gone = waiting.add(TenantFrame(pixels, origin, member.ledger.receive(now), member), now, 0.01)
    drop(gone, DropReason.OVERRUN)
    return gone


def values(frames: list[TenantFrame]) -> list[int]:
    return [found.origin.header[1] for found in frames]


def test_a_tenants_oldest_gives_way_and_no_other_tenants() -> None:
    waiting = WaitingFrames(2)
    front, rear = (TenantState(tenant=Tenant(name, "one"), model="one") for name in ("front", "rear"))
    assert arrive(waiting, rear, 1, 0.0) == []
    assert [values(arrive(waiting, front, value, 1.0 + value)) for value in range(5)] == [[], [], [0], [1], [2]]
    assert len(waiting) == 3
    assert values(waiting.configure(1)) == [3]
    assert values(waiting.take(waiting.of_models({"one"}))) == [1, 4]
    assert front.waiting == rear.waiting == len(waiting) == 0


def test_who_sends_fast_has_its_turn_as_often_as_the_others() -> None:
    waiting = WaitingFrames(2)
    periods = {"slow": 10, "fast": 1, "faster": 0.25}
    members = {name: TenantState(tenant=Tenant(name, "one"), model="one") for name in periods}
    served = []
    for quarter in range(4000):
        for name, period in periods.items():
            if quarter % (4 * period) == 0:
                arrive(waiting, members[name], quarter, quarter / 4)
        if quarter % 60 == 59:  # one is served in the time in which three come even of the slow ones
            (found,) = waiting.take(waiting.of_models({"one"})[:1])
            found.ticket.publish()
            served.append(found.account.tenant.name)
    assert min(served.count(name) for name in periods) >= len(served) // 3 - 1


def test_frames_have_their_turn_by_deadline_and_priority() -> None:
    waiting = WaitingFrames(9)
    members = {
        name: TenantState(tenant=Tenant(name, name, deadline_s=deadline_s, priority=priority), model=name)
        for name, deadline_s, priority in (("late", 1.0, 0), ("soon", 0.5, 0), ("first", 1.0, 2), ("default", 0.0, 0))
    }
    for member in members.values():
        arrive(waiting, member, 1, 0.0)
    assert [request.tenant for request in waiting.of_models(set(members))] == ["default", "first", "soon", "late"]
    assert [request.deadline_s for request in waiting.of_models({"default", "soon"})] == [float("inf"), 0.5]


STEPS = st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "take", "forget", "limit"]), st.integers(1, 4))


@given(st.lists(STEPS))
def test_nothing_that_waits_is_lost(steps: list[tuple[str, str, int]]) -> None:
    waiting = WaitingFrames(3)
    members = {name: TenantState(tenant=Tenant(name, name), model=name) for name in "abc"}
    for index, (name, kind, number) in enumerate(steps):
        if kind == "add":
            arrive(waiting, members[name], index, float(index))
        elif kind == "take":
            drop(waiting.take(waiting.of_models({name})[:number]), DropReason.BACKBONE_ERROR)
        elif kind == "forget":
            drop(waiting.forget(name), DropReason.REMOVED)
        else:
            drop(waiting.configure(number), DropReason.OVERRUN)
        for member in members.values():
            counts = member.ledger.counts()
            assert counts.balanced
            assert counts.in_flight == member.waiting
        assert len(waiting) == sum(member.waiting for member in members.values())
    drop(waiting.clear(), DropReason.SHUTDOWN)
    assert all(member.ledger.counts().in_flight == member.waiting == 0 for member in members.values())
