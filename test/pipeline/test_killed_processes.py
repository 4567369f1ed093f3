"""Processes around a shared ring, killed at any instant: no slot, handle or segment is lost, and no frame unnamed.

They are forked, without ROS and a model, so that a round takes milliseconds; test/nodes/test_transports.py kills whole
nodes.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from split_infer_ros.buffers import segment as module
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.segment import PREFIX, Segment, remove_leftovers
from split_infer_ros.buffers.shared_pool import ATTACH_S, SharedPool, SharedPoolReader
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import HandleError
from split_infer_ros.pipeline.ledger import Ledger, Ticket

LAYOUT = Layout([TensorSpec("a", (64, 64), torch.float32), TensorSpec("b", (5,), torch.int64)], 1)
SLOTS = 3
HANDLE = struct.Struct("<Q64sQQQ")  # frame, segment, pool, slot, generation
RESULT = struct.Struct("<Q")
LIFE_S = 4e-3  # at most so long lives a process, once frames flow
WORK_S = 2e-4  # of a head, on one frame
WAIT_S = 60.0
WRONG = 2**32 - 1  # a frame that is not what was sent
KILLS = [50, pytest.param(500, marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own in the place of /dev/shm."""
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return tmp_path


class Backbone:
    """Numbers as frames, in slots of a ring; handles go down a socket.

    Attributes:
        published: the frames whose results are out, as their records say.
    """

    def __init__(self) -> None:
        self.pool = SharedPool(LAYOUT, SLOTS)
        self.ledger = Ledger()
        self.published: list[int] = []
        self._under_way: dict[Lease, tuple[int, Ticket]] = {}
        self._clock_ahead = 0.0

    def step(self, channel: socket.socket) -> None:
        """Settle what came back, and send one frame if there is a slot."""
        self._collect()
        lease = self.pool.acquire()
        if lease is None:
            os.sched_yield()
            return
        number = self.ledger.counts().received
        self._under_way[lease] = number, self.ledger.receive(0.0)
        for view in self.pool.views(lease, 1):
            view.fill_(number)
        self.pool.publish(lease, self._now)
        try:
            channel.send(HANDLE.pack(number, self.pool.segment.encode(), lease.pool, lease.slot, lease.generation))
        except OSError:  # nobody is there: the lease will end
            return

    def drain(self) -> None:
        """Once the last head is gone, all slots come back."""
        self.pass_time()
        end = time.monotonic() + WAIT_S
        while self._under_way:
            assert time.monotonic() < end, self.pool
            self._collect()

    def pass_time(self) -> None:
        """As long as a ring without a reader waits for one."""
        self._clock_ahead += ATTACH_S

    @property
    def _now(self) -> float:
        return time.monotonic() + self._clock_ahead

    def _collect(self) -> None:
        for lease, outcome in self.pool.collect(self._now):
            number, ticket = self._under_way.pop(lease)
            if outcome.published:
                self.published.append(number)
                ticket.publish()
            else:
                ticket.drop(outcome.reason)
        assert self.ledger.counts().balanced


class Head:
    """Takes handles off a socket, looks at the features, and says which frames it has seen."""

    def __init__(self) -> None:
        self.readers: dict[str, SharedPoolReader] = {}

    def step(self, channel: socket.socket) -> int | None:
        """One handle: its frame's number; None if the handle leads nowhere any more.

        Raises:
            EOFError: the other side is gone, and all that it sent has been read.
        """
        packet = channel.recv(HANDLE.size)
        if not packet:
            raise EOFError
        number, name, *lease_fields = HANDLE.unpack(packet)
        segment, lease = name.rstrip(b"\0").decode(), Lease(*lease_fields)
        try:
            if segment not in self.readers:
                reader = SharedPoolReader(segment, LAYOUT)
                self.readers = {other: old for other, old in self.readers.items() if old.owner_lives}
                self.readers[segment] = reader
            self.readers[segment].take(lease)
        except HandleError:
            return None
        start = time.monotonic()
        right = all(bool((view == number).all()) for view in self.readers[segment].views(lease, 1))
        time.sleep(WORK_S)
        self._deliver(number if right else WRONG)
        now = time.monotonic()
        self.readers[segment].release(lease, Outcome(1, "head_error", start, now, now))
        return number if right else WRONG

    def _deliver(self, number: int) -> None:
        """The result is out."""


class OneBackbone:
    """One that is made in the process in which it steps."""

    def __init__(self) -> None:
        self._made: Backbone | None = None

    def step(self, channel: socket.socket) -> None:
        """As a backbone's."""
        if self._made is None:
            remove_leftovers()
            self._made = Backbone()
        self._made.step(channel)


class RemoteHead(Head):
    """One that sends its results to the test."""

    def __init__(self, results: socket.socket) -> None:
        super().__init__()
        self._results = results

    def _deliver(self, number: int) -> None:
        self._results.send(RESULT.pack(number))


class Child:
    """A forked process that works for ever, and ``channel``, this side of a socket to it; killed in the end."""

    def __init__(self, work: Callable[[socket.socket], None]) -> None:
        self.channel, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(WAIT_S)
        with there:
            self._pid = os.fork()
            if self._pid == 0:
                self.channel.close()
                try:
                    while True:
                        work(there)
                finally:
                    os._exit(1)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self.channel.close()

    def kill(self) -> None:
        """As kill -9 does."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def held() -> tuple[int, int]:
    """Open files and mapped segments of this process."""
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if PREFIX in line]
    return len(list(Path("/proc/self/fd").iterdir())), len(maps)


@pytest.mark.parametrize("kills", KILLS)
def test_a_ring_outlives_its_readers(folder: Path, kills: int) -> None:
    rng = random.Random(1)
    backbone = Backbone()
    results, from_heads = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    delivered: Counter[int] = Counter()
    with results, from_heads:
        results.setblocking(False)

        def fetch() -> int:
            while True:
                try:
                    delivered.update(RESULT.unpack(results.recv(RESULT.size)))
                except BlockingIOError:
                    return delivered.total()

        before = held()
        for turn in range(kills):
            known = fetch()
            with Child(RemoteHead(from_heads).step) as child:
                child.channel.setblocking(False)
                end = time.monotonic() + WAIT_S
                while fetch() == known:  # the stream goes on
                    backbone.step(child.channel)
                    assert time.monotonic() < end, (turn, backbone.pool)
                end = time.monotonic() + rng.uniform(0, LIFE_S)
                while time.monotonic() < end:
                    backbone.step(child.channel)
            assert [path.name for path in folder.iterdir()] == [backbone.pool.segment]
            backbone.pass_time()
        backbone.drain()
        fetch()
        assert held() == before
    assert backbone.pool.ring.used == 0
    counts = backbone.ledger.counts()
    assert counts.balanced
    assert counts.in_flight == 0
    assert set(counts.dropped) == {"reader_died", "lease_expired"}
    assert counts.dropped["reader_died"] <= kills
    assert set(delivered.values()) == {1}  # no result twice
    assert WRONG not in delivered
    assert set(backbone.published) <= set(delivered)
    # results that were out when death came, and are not counted: one a death
    assert len(delivered) - len(backbone.published) <= kills
    assert counts.published >= kills / 2
    backbone.pool.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kills", KILLS)
def test_a_reader_outlives_the_owners_of_its_rings(folder: Path, kills: int) -> None:
    rng = random.Random(2)
    head = Head()
    others = Segment.create(1, 300, 1)  # another pipeline's of this user, whose owner lives
    seen: list[tuple[int, int]] = []
    last = ""
    for _ in range(kills):
        with Child(OneBackbone().step):
            time.sleep(rng.uniform(0, LIFE_S))  # as it removes what is left, makes its ring, or waits for a reader
        with Child(OneBackbone().step) as child:
            numbers = [head.step(child.channel) for _ in range(2 * SLOTS)]  # slots come back to it
            (ring,) = {path.name for path in folder.iterdir()} - {others.name}
            assert ring != last  # what the dead ones left is gone
            last = ring
            seen.append(held())
            end = time.monotonic() + rng.uniform(0, LIFE_S)
            while time.monotonic() < end:
                numbers.append(head.step(child.channel))
            child.kill()
            with suppress(EOFError):
                while True:  # what it sent before is still good
                    numbers.append(head.step(child.channel))
            assert numbers == list(range(len(numbers)))
    assert set(seen[1:]) == {seen[-1]}
    assert len(head.readers) == 1
    assert remove_leftovers() == [last]
    assert [path.name for path in folder.iterdir()] == [others.name]
    others.close()
