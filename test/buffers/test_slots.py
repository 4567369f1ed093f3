from __future__ import annotations

import math
import threading
import time
from collections import Counter
from queue import SimpleQueue

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from split_infer_ros.buffers.slots import Lease, Outcome, SlotLeases
from split_infer_ros.errors import ConfigurationError, HandleError

SLOTS = 3
LEASE_S = 10.0


class RingMachine(RuleBasedStateMachine):
    """Any order of calls, with any lease ever seen, compared with a simple model of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = SlotLeases(SLOTS, LEASE_S)
        self.now = 0.0
        self.held: dict[Lease, tuple[str, float]] = {}
        pool = self.leases.pool
        self.seen = [Lease(pool + 1, 0, 1), Lease(pool, SLOTS, 1), Lease(pool, -1, 1)]
        self.refused: Counter[str] = Counter()

    def expect(self, lease: Lease, *states: str) -> str | None:
        """Returns the reason for which the lease should be refused, or None."""
        if lease in self.held:
            return None if self.held[lease][0] in states else "busy"
        if lease.pool != self.leases.pool or not 0 <= lease.slot < SLOTS:
            return "foreign"
        newest = max(seen.generation for seen in self.seen if (seen.pool, seen.slot) == (lease.pool, lease.slot))
        return "stale" if lease.generation != newest else "released"

    def attempt(self, reason: str | None, call: object, *args: object) -> bool:
        if reason is None:
            call(*args)  # type: ignore[operator]
            return True
        with pytest.raises(HandleError) as refusal:
            call(*args)  # type: ignore[operator]
        assert refusal.value.reason == reason
        self.refused[reason] += 1
        return False

    @rule()
    def acquire(self) -> None:
        lease = self.leases.acquire()
        assert (lease is None) == (len(self.held) == SLOTS)
        if lease is not None:
            assert lease not in self.seen, "a lease was given out twice"
            assert lease.slot not in {held.slot for held in self.held}, "two users of one slot"
            self.seen.append(lease)
            self.held[lease] = ("writing", 0.0)

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.seen))
        if self.attempt(self.expect(lease, "writing"), self.leases.publish, lease, self.now):
            self.held[lease] = ("ready", self.now + LEASE_S)

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.seen))
        if self.attempt(self.expect(lease, "ready"), self.leases.take, lease):
            self.held[lease] = ("reading", 0.0)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.seen))
        if self.attempt(self.expect(lease, "writing", "ready", "reading"), self.leases.release, lease):
            del self.held[lease]

    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        own = [lease for lease in self.seen if self.expect(lease) != "foreign"]
        if own:
            lease = data.draw(st.sampled_from(own))
            revocable = self.expect(lease, "writing", "ready") is None
            assert self.leases.revoke(lease) == revocable
            if revocable:
                del self.held[lease]

    @rule(seconds=st.sampled_from([0.0, LEASE_S / 2, LEASE_S]))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        ended = {lease for lease, (state, end) in self.held.items() if state == "ready" and end <= self.now}
        assert set(self.leases.expire(self.now)) == ended
        for lease in ended:
            del self.held[lease]

    @invariant()
    def agrees(self) -> None:
        assert self.leases.used == len(self.held)
        assert self.leases.refused == self.refused


TestRingMachine = RingMachine.TestCase
TestRingMachine.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_lease_ends_exactly_at_its_deadline() -> None:
    leases = SlotLeases(1, 5.0)
    lease = leases.acquire()
    assert lease is not None
    leases.publish(lease, now=100.0)
    assert leases.expire(104.999) == []
    assert leases.expire(105.0) == [lease]
    with pytest.raises(HandleError, match="given back before"):
        leases.take(lease)


def test_a_slot_that_is_read_is_not_expired() -> None:
    leases = SlotLeases(1, 5.0)
    lease = leases.acquire()
    assert lease is not None
    leases.publish(lease, now=0.0)
    leases.take(lease)
    assert leases.expire(1e9) == []
    leases.release(lease)
    assert leases.used == 0


def test_a_slot_behind_one_that_is_read_is_not_late() -> None:
    leases = SlotLeases(2, 5.0)
    first, second = leases.acquire(), leases.acquire()
    assert first is not None
    assert second is not None
    for lease in (first, second):
        leases.publish(lease, now=0.0)
    leases.take(first)
    leases.renew_if_read(100.0)
    assert leases.expire(104.9) == []
    leases.release(first)
    leases.renew_if_read(104.9)  # nobody reads: the lease runs
    assert leases.expire(105.0) == [second]


def test_repr_tells_used_slots_and_refusals() -> None:
    leases = SlotLeases(2, 1.0)
    leases.acquire()
    assert "1/2" in repr(leases)


def test_threads_never_share_a_slot() -> None:
    """Runs writers and readers at once. Each lease is offered to readers twice, and one of them is refused."""
    leases = SlotLeases(3, 60.0)
    users = [0] * len(leases)
    offered: SimpleQueue[Lease | None] = SimpleQueue()
    trouble: list[str] = []
    read_leases: list[Lease] = []
    rounds = 200

    def use(lease: Lease) -> None:
        users[lease.slot] += 1
        time.sleep(0)  # lets the others in
        if users[lease.slot] != 1:
            trouble.append(f"slot {lease.slot} had {users[lease.slot]} users")
        users[lease.slot] -= 1

    def write() -> None:
        for _ in range(rounds):
            while (lease := leases.acquire()) is None:
                time.sleep(0.0001)
            use(lease)
            leases.publish(lease, 0.0)
            offered.put(lease)
            offered.put(lease)

    def read() -> None:
        while (lease := offered.get(timeout=60.0)) is not None:
            try:
                leases.take(lease)
            except HandleError:
                continue
            use(lease)
            read_leases.append(lease)
            leases.release(lease)

    writers = [threading.Thread(target=write, daemon=True) for _ in range(2)]
    readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for thread in (*writers, *readers):
        thread.start()
    for thread in writers:
        thread.join(60.0)
    for _ in readers:
        offered.put(None)
    for thread in readers:
        thread.join(60.0)
    assert trouble == []
    assert len(read_leases) == len(set(read_leases)) == 2 * rounds
    assert sum(leases.refused.values()) == 2 * rounds
    assert leases.used == 0


@pytest.mark.parametrize("slots", [0, -1])
def test_a_pool_without_slots_is_refused(slots: int) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot have {slots} slots"):
        SlotLeases(slots, LEASE_S)


def test_an_impossible_outcome_is_corrected() -> None:
    good = Outcome(1, "head_error", 5.0, 6.0, 6.0)
    assert good.checked() == good
    for reason in ("", "head_errors", "overrun", 1000 * "x"):
        assert Outcome(1, reason, 5.0, 6.0, 7.0).checked() == Outcome(1, "unknown_reason", 5.0, 6.0, 7.0)
    nan, inf = math.nan, math.inf
    backwards, unset = ((6.0, 5.0, 7.0), (5.0, 7.0, 6.0)), ((nan, 5.0, 6.0), (5.0, nan, 6.0))
    for times in (*backwards, *unset, (-inf, 5.0, 6.0), (0.0, 1.0, inf)):
        checked = Outcome(1, "head_error", *times).checked()
        assert math.isnan(checked.head_start)
        assert math.isnan(checked.head_end)
        assert math.isnan(checked.delivered)
