"""A slot pool between two processes: who may touch a slot when, and what happens if either process dies."""

from __future__ import annotations

import gc
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from split_infer_ros.buffers import segment as module
from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.segment import PAGE, PREFIX, Segment
from split_infer_ros.buffers.shared_pool import ATTACH_S, SharedSlotPool
from split_infer_ros.buffers.shared_reader import SharedSlotReader
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import ConfigurationError, HandleError

LAYOUT = Layout([TensorSpec("a", (2, 3), FLOAT32), TensorSpec("b", (5,), np.dtype(np.int64))], 2)
LEASE_S = 10.0
GOOD = Outcome(2, "head_error", 1.5, 2.5, 3.5)
WAIT_S = 60.0

pytestmark = pytest.mark.usefixtures("folder")


def make(slots: int = 2) -> tuple[SharedSlotPool, SharedSlotReader]:
    pool = SharedSlotPool.allocate(LAYOUT, slots, lease_s=LEASE_S)
    return pool, SharedSlotReader.attach(pool.segment, LAYOUT)


def published(pool: SharedSlotPool, now: float = 0.0) -> Lease:
    lease = pool.acquire()
    assert lease is not None
    pool.publish(lease, now)
    return lease


def refused(reader: SharedSlotReader, lease: Lease) -> str:
    try:  # not pytest.raises, which keeps the traceback, and so the reader and its locks
        reader.take(lease)
    except HandleError as error:
        return error.reason
    pytest.fail(f"{lease} was not refused.")


@contextmanager
def reader_process(folder: Path, pool: SharedSlotPool, lease: Lease, then: str = "") -> Iterator[subprocess.Popen[str]]:
    """Runs a process that took a lease, without torch. It is killed in the end."""
    program = f"""
import pathlib, sys
from split_infer_ros.buffers import segment
from split_infer_ros.buffers.slot_table import SlotRecord, SharedState, SlotTable
from split_infer_ros.buffers.slots import Outcome
segment.FOLDER = pathlib.Path({str(folder)!r})
found = segment.Segment.attach({pool.segment!r})
table = SlotTable(found)
assert found.lock_slot({lease.slot})
assert table.read({lease.slot}).state is SharedState.READY
table.write({lease.slot}, SlotRecord(SharedState.READING, {lease.generation}))
{then}
assert 'torch' not in sys.modules
print('ready', flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_the_reader_sees_the_owners_bytes_without_a_copy() -> None:
    pool, reader = make()
    for value in (1, 2):
        lease = published(pool)
        for view in pool.views(lease, 2):
            view[...] = value
        reader.take(lease)
        views = reader.views(lease, 2)
        assert [view.shape for view in views] == [(2, 2, 3), (2, 5)]
        assert all((view == value).all() for view in views)
        pool.views(lease, 2)[0][1, 1, 2] = 77.0  # the same memory
        assert views[0][1, 1, 2] == 77.0
        assert reader.views(lease, 1)[1].shape == (1, 5)


def test_one_reader_holds_the_claim_until_it_disclaims_or_goes() -> None:
    pool, first = make()
    second = SharedSlotReader.attach(pool.segment, LAYOUT)
    assert first.claim()
    assert not second.claim()
    assert first.claim()  # it may ask again
    first.disclaim()
    assert second.claim()
    assert not first.claim()
    del second
    gc.collect()
    assert first.claim()
    lease = published(pool)
    first.take(lease)  # the claim and a slot's lock are two things
    first.release(lease, GOOD)


def test_is_ready_until_a_reader_takes_the_slot() -> None:
    pool, reader = make()
    lease = published(pool)
    assert reader.is_ready(lease)
    reader.take(lease)
    assert not reader.is_ready(lease)
    reader.release(lease, GOOD)
    assert not reader.is_ready(lease)
    pool.collect(0.0)
    lease = published(pool)
    for other in (replace(lease, generation=99), replace(lease, slot=99), replace(lease, pool=99)):
        assert not reader.is_ready(other)


def test_each_outcome_is_collected_once() -> None:
    pool, reader = make()
    lease = published(pool)
    assert pool.collect(1.0) == []
    reader.take(lease)
    assert pool.collect(1.0) == []
    reader.release(lease, GOOD)
    assert pool.leases.used == 1  # until it is collected
    assert pool.collect(1.0) == [(lease, GOOD)]
    assert pool.collect(1.0) == []
    assert pool.leases.used == 0


def test_a_slow_reader_keeps_its_slot_beyond_the_lease() -> None:
    pool, reader = make()
    lease = published(pool)
    reader.take(lease)
    assert pool.collect(100 * LEASE_S) == []
    assert not pool.revoke(lease)
    reader.release(lease, GOOD)
    assert pool.collect(100 * LEASE_S) == [(lease, GOOD)]


def test_a_reader_that_never_comes_loses_the_slot() -> None:
    pool, reader = make()
    lease = published(pool, 5.0)
    assert pool.collect(5.0 + 0.99 * LEASE_S) == []
    assert [(found, outcome.reason) for found, outcome in pool.collect(5.0 + LEASE_S)] == [(lease, "lease_expired")]
    assert pool.leases.used == 0
    assert refused(reader, lease) == "stale"


def test_without_readers_a_lease_ends_early() -> None:
    pool, reader = make()
    lease = published(pool)
    del reader  # as its death does
    assert pool.collect(0.9 * ATTACH_S) == []  # one may be about to attach
    late = SharedSlotReader.attach(pool.segment, LAYOUT)
    assert pool.collect(ATTACH_S) == []
    del late
    assert [(found, outcome.reason) for found, outcome in pool.collect(ATTACH_S)] == [(lease, "lease_expired")]


def test_an_outcome_counts_even_if_the_lease_ended_meanwhile() -> None:
    pool, reader = make()
    lease = published(pool)
    reader.take(lease)
    reader.release(lease, GOOD)
    assert not pool.revoke(lease)  # its results went out: not lost
    assert pool.collect(100 * LEASE_S) == [(lease, GOOD)]


def test_a_read_just_before_collecting_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, reader = make()
    lease = published(pool)
    lock = Segment.lock_slot

    def late(segment: Segment, slot: int) -> bool:
        monkeypatch.undo()
        reader.take(lease)
        reader.release(lease, GOOD)
        return lock(segment, slot)

    folder = module.FOLDER
    monkeypatch.setattr(Segment, "lock_slot", late)
    found = pool.collect(LEASE_S)
    monkeypatch.setattr(module, "FOLDER", folder)
    assert found == [(lease, GOOD)]


def test_a_handle_can_be_read_once() -> None:
    pool, reader = make()
    other = SharedSlotReader.attach(pool.segment, LAYOUT)
    lease = pool.acquire()
    assert lease is not None
    assert refused(reader, lease) == "stale"  # being written
    pool.publish(lease, 0.0)
    reader.take(lease)
    assert refused(other, lease) == "busy"
    assert refused(reader, lease) == "busy"
    reader.release(lease, GOOD)
    assert refused(reader, lease) == "stale"
    assert refused(other, lease) == "stale"
    pool.collect(0.0)
    assert refused(reader, lease) == "stale"
    again = published(pool)
    assert again.slot == lease.slot
    assert refused(reader, lease) == "stale"
    assert refused(reader, replace(again, generation=again.generation + 1)) == "stale"
    other.take(again)


@pytest.mark.parametrize("change", [{"pool": 5}, {"slot": 2}, {"slot": -1}, {"slot": 2**32 - 1}])
def test_leases_of_other_pools_are_foreign(change: dict[str, int]) -> None:
    pool, reader = make()
    lease = published(pool)
    assert refused(reader, replace(lease, **change)) == "foreign"
    reader.take(lease)


def test_a_reader_with_another_model_is_refused() -> None:
    pool, _ = make()
    gc.collect()
    for layout in (Layout(LAYOUT.specs, 300), Layout(LAYOUT.specs[:1], 2)):
        with pytest.raises(HandleError, match="this model's features need") as refusal:
            SharedSlotReader.attach(pool.segment, layout)
        assert refusal.value.reason == "foreign"


def test_a_refused_reader_blocks_nobody() -> None:
    pool, reader = make()
    lease = published(pool)
    for bad in (replace(lease, generation=99), replace(lease, pool=1)):
        refused(reader, bad)
    assert pool.revoke(lease)
    assert pool.leases.used == 0


def test_dead_readers_are_told_from_slow_ones(folder: Path) -> None:
    pool, reader = make()
    lease = published(pool)
    with reader_process(folder, pool, lease) as process:
        assert pool.collect(100 * LEASE_S) == []
        assert not pool.revoke(lease)
        assert refused(reader, lease) == "busy"
        process.kill()
        process.wait(WAIT_S)
        # between its death and the owner's look nobody else reads on
        assert refused(reader, lease) == "busy"
        assert [(found, outcome.reason) for found, outcome in pool.collect(0.0)] == [(lease, "reader_died")]
    assert pool.leases.used == 0
    again = published(pool)
    reader.take(again)


def test_an_outcome_from_before_a_readers_death_counts(folder: Path) -> None:
    pool, _ = make()
    lease = published(pool)
    outcome = "Outcome(2, 'head_error', 1.5, 2.5, 3.5)"
    done = f"table.write({lease.slot}, SlotRecord(SharedState.DONE, {lease.generation}, {outcome}))"
    with reader_process(folder, pool, lease, then=done) as process:
        assert pool.collect(0.0) == []  # not let go of yet
        process.kill()
        process.wait(WAIT_S)
        assert pool.collect(0.0) == [(lease, GOOD)]


def test_no_slot_is_lost_to_fifty_dead_readers(folder: Path) -> None:
    """Readers are forked because that is quick. Their locks are their own as well."""
    pool, _ = make(slots=3)
    for number in range(50):
        lease = published(pool)
        begun, ready = os.pipe()
        child = os.fork()
        if child == 0:
            SharedSlotReader.attach(pool.segment, LAYOUT).take(lease)
            os.write(ready, b"x")
            signal.pause()
        assert os.read(begun, 1) == b"x"
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(begun)
        os.close(ready)
        assert [outcome.reason for _, outcome in pool.collect(0.0)] == ["reader_died"], number
    assert pool.leases.used == 0
    assert sorted(published(pool).slot for _ in range(3)) == [0, 1, 2]


def test_readers_keep_their_memory_when_the_owner_goes() -> None:
    pool, reader = make()
    lease = published(pool)
    pool.views(lease, 1)[0][...] = 4.0
    reader.take(lease)
    pool.close()
    assert not reader.owner_lives
    assert (reader.views(lease, 1)[0] == 4.0).all()
    reader.release(lease, GOOD)


def test_close_frees_memory_and_name(folder: Path) -> None:
    pool, reader = make()
    assert [path.name for path in folder.iterdir()] == [pool.segment]
    assert pool.segment.startswith(PREFIX)
    assert pool.bytes == 2 * LAYOUT.slot_bytes
    assert pool.memory == "shared"
    assert pool.segment in repr(pool)
    pool.close()
    assert list(folder.iterdir()) == []
    name = str(folder / pool.segment)
    del pool, reader
    gc.collect()
    assert name not in Path("/proc/self/maps").read_text()


def test_too_much_memory_is_refused_and_nothing_leaks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLDER", Path("/dev/shm"))
    before = set(Path("/dev/shm").glob(PREFIX + "*"))
    with pytest.raises(ConfigurationError, match="batch_size"):
        SharedSlotPool.allocate(Layout([TensorSpec("x", (1 << 36,), FLOAT32)], 64), 8)
    assert not {path for path in Path("/dev/shm").glob(PREFIX + "*") if not path.stat().st_blocks} - before


def test_a_damaged_record_drops_its_frames_as_damaged_slot() -> None:
    pool, reader = make()
    lease = published(pool)
    assert lease.slot == 1
    struct.pack_into("<I", Segment.attach(pool.segment).data, PAGE + 64, 77)
    assert refused(reader, lease) == "stale"
    assert [(found, outcome.reason) for found, outcome in pool.collect(0.0)] == [(lease, "damaged_slot")]
    reader.take(published(pool))


def test_a_reader_cannot_invent_drop_reasons() -> None:
    pool, reader = make()
    lease = published(pool)
    reader.take(lease)
    reader.release(lease, Outcome(1, "my own", 1.5, 2.5, 3.5))
    assert pool.collect(0.0) == [(lease, Outcome(1, "unknown_reason", 1.5, 2.5, 3.5))]


@pytest.mark.parametrize("size", [0, PAGE + 100])
def test_a_truncated_segment_is_mended_and_its_frames_counted(folder: Path, size: int) -> None:
    pool, reader = make()
    whole = (folder / pool.segment).stat().st_size
    lease = published(pool)
    os.truncate(folder / pool.segment, size)
    assert refused(reader, lease) == "foreign"  # before it touches what is not there
    found = pool.collect(LEASE_S)
    assert [(settled, outcome.reason) for settled, outcome in found] == [
        (lease, "damaged_slot" if size < PAGE else "lease_expired")
    ]
    assert (folder / pool.segment).stat().st_size == whole
    for again in (published(pool), published(pool)):
        for view in pool.views(again, 2):
            view[...] = 3
        reader.take(again)
        assert all((view == 3).all() for view in reader.views(again, 2))
    SharedSlotReader.attach(pool.segment, LAYOUT)  # its header is back
    os.truncate(folder / pool.segment, size)
    assert pool.acquire() is None  # full, and alive


class Machine(RuleBasedStateMachine):
    """Any order of the owner's and two readers' steps, compared with a simple model of who holds what."""

    SLOTS = 3

    def __init__(self) -> None:
        super().__init__()
        self.pool = SharedSlotPool.allocate(LAYOUT, self.SLOTS, lease_s=LEASE_S)
        self.readers = [SharedSlotReader.attach(self.pool.segment, LAYOUT) for _ in range(2)]
        self.now = 0.0
        self.states: dict[Lease, str] = {}  # of those that are not settled
        self.deadlines: dict[Lease, float] = {}
        self.holders: dict[Lease, int] = {}
        self.outcomes: dict[Lease, Outcome] = {}
        self.seen: list[Lease] = []

    def settle(self, lease: Lease) -> None:
        del self.states[lease]

    @rule()
    def acquire(self) -> None:
        lease = self.pool.acquire()
        assert (lease is None) == (len(self.states) == self.SLOTS)
        if lease is not None:
            assert lease not in self.seen
            self.seen.append(lease)
            self.states[lease] = "writing"

    @precondition(lambda self: "writing" in self.states.values())
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from([lease for lease, state in self.states.items() if state == "writing"]))
        self.pool.views(lease, 2)[1][...] = lease.generation * self.SLOTS + lease.slot
        self.pool.publish(lease, self.now)
        self.states[lease] = "ready"
        self.deadlines[lease] = self.now + LEASE_S

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), who=st.sampled_from([0, 1]))
    def take(self, data: st.DataObject, who: int) -> None:
        lease = data.draw(st.sampled_from(self.seen[-8:]))
        state = self.states.get(lease)
        if state == "ready":
            self.readers[who].take(lease)
            self.states[lease] = "reading"
            self.holders[lease] = who
        else:
            assert refused(self.readers[who], lease) == ("busy" if state in ("reading", "orphan") else "stale")

    @precondition(lambda self: "reading" in self.states.values())
    @rule(data=st.data(), frames=st.integers(0, 2))
    def release(self, data: st.DataObject, frames: int) -> None:
        lease = data.draw(st.sampled_from([lease for lease, state in self.states.items() if state == "reading"]))
        self.outcomes[lease] = Outcome(frames, "head_error", self.now, self.now, self.now)
        self.readers[self.holders[lease]].release(lease, self.outcomes[lease])
        self.states[lease] = "done"

    @rule(who=st.sampled_from([0, 1]))
    def die(self, who: int) -> None:
        """Simulates kill -9: the reader's mapping and locks are gone, and its records stay."""
        self.readers[who] = SharedSlotReader.attach(self.pool.segment, LAYOUT)
        for lease, state in self.states.items():
            if state == "reading" and self.holders[lease] == who:
                self.states[lease] = "orphan"

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(list(self.states)))
        free = self.states[lease] in ("writing", "ready", "orphan")
        assert self.pool.revoke(lease) == free
        if free:
            self.settle(lease)

    @rule()
    def collect(self) -> None:
        expected = {}
        for lease, state in self.states.items():
            if state == "done":
                expected[lease] = self.outcomes[lease].reason, self.outcomes[lease].published
            elif state == "orphan":
                expected[lease] = "reader_died", 0
            elif state == "ready" and self.deadlines[lease] <= self.now:
                expected[lease] = "lease_expired", 0
        found = {lease: (outcome.reason, outcome.published) for lease, outcome in self.pool.collect(self.now)}
        assert found == expected
        for lease in found:
            self.settle(lease)

    @rule(seconds=st.sampled_from([0.5, LEASE_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def slots_are_accounted_for(self) -> None:
        assert self.pool.leases.used == len(self.states)

    @invariant()
    def readers_see_what_was_written_for_them(self) -> None:
        for lease, state in self.states.items():
            if state == "reading":
                (_, view) = self.readers[self.holders[lease]].views(lease, 2)
                assert (view == lease.generation * self.SLOTS + lease.slot).all()

    def teardown(self) -> None:
        self.pool.close()


class TestInterleavings(Machine.TestCase):  # type: ignore[misc]
    """The machine, in the tests' own folder."""

    settings = settings(max_examples=30, stateful_step_count=30)
