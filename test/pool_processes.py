"""Processes around a shared pool, without ROS and a model, that tests kill: a backbone, a head, and their parents.

Each slot carries random features and a checksum of them that starts with the frame's number, so that features which
are torn, or another frame's, are noticed.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from split_infer_ros.buffers import segment as module
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.pool import HOST
from split_infer_ros.buffers.segment import remove_leftovers
from split_infer_ros.buffers.shared_pool import ATTACH_S, SharedSlotPool, SharedSlotReader
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import HandleError
from split_infer_ros.pipeline.ledger import Ledger, Ticket

LAYOUT = Layout([TensorSpec("features", (64, 64), torch.float32), TensorSpec("checksum", (1,), torch.int64)], 1)
SLOTS = 3
HANDLE = struct.Struct("<Q64sQQQ")  # frame, segment, pool, slot, generation
RESULT = struct.Struct("<Q")
LIFE_S = 4e-3  # at most so long lives a process, once frames flow
WORK_S = 2e-4  # of a head, on one frame
WAIT_S = 60.0
WRONG = 2**32 - 1  # a frame that is not what was sent


def checksum(number: int, features: torch.Tensor) -> int:
    """Of a frame's features, in the CPU's memory."""
    return zlib.crc32(memoryview(features.numpy()), number)


class Backbone:
    """Numbers as frames, in slots of a pool; handles go down a socket.

    Args:
        place: the pool's memory, and where the features are made.

    Attributes:
        published: the frames whose results are out, as their records say.
    """

    def __init__(self, place: Place = HOST) -> None:
        self.pool = SharedSlotPool(LAYOUT, SLOTS, place)
        self._device = place.device if torch.cuda.is_available() else "cpu"  # where a GPU is but played
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
        self._compute(lease, number)
        self.pool.publish(lease, self._now)
        try:
            channel.send(HANDLE.pack(number, self.pool.segment.encode(), lease.pool, lease.slot, lease.generation))
        except OSError:  # nobody is there: the lease will end
            return

    def _compute(self, lease: Lease, number: int) -> None:
        features = torch.rand(1, 64, 64)
        tensors = features, torch.tensor([[checksum(number, features)]])
        self.pool.slots.write(lease.slot, [tensor.to(self._device) for tensor in tensors])
        if self.pool.slots.copies:
            self.pool.slots.fetch(lease.slot, 1)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def drain(self) -> None:
        """Once the last head is gone, all slots come back."""
        self.pass_time()
        end = time.monotonic() + WAIT_S
        while self._under_way:
            assert time.monotonic() < end, self.pool
            self._collect()

    def pass_time(self) -> None:
        """As long as a pool without a reader waits for one."""
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
                ticket.drop(DropReason.named(outcome.reason))
        assert self.ledger.counts().balanced


class Head:
    """Takes handles off a socket, looks at the features, and says which frames it has seen."""

    def __init__(self) -> None:
        self.readers: dict[str, SharedSlotReader] = {}

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
                reader = SharedSlotReader(segment, LAYOUT)
                self.readers = {other: old for other, old in self.readers.items() if old.owner_lives}
                self.readers[segment] = reader
            self.readers[segment].take(lease)
        except HandleError:
            return None
        start = time.monotonic()
        features, expected = self.readers[segment].views(lease, 1)
        right = checksum(number, features) == int(expected)
        time.sleep(WORK_S)
        self._deliver(number if right else WRONG)
        now = time.monotonic()
        self.readers[segment].release(lease, Outcome(1, "head_error", start, now, now))
        return number if right else WRONG

    def _deliver(self, number: int) -> None:
        """The result is out."""


class OneBackbone:
    """One that is made in the process in which it steps."""

    def __init__(self, place: Place = HOST) -> None:
        self._place = place
        self._made: Backbone | None = None

    def step(self, channel: socket.socket) -> None:
        """As a backbone's."""
        if self._made is None:
            remove_leftovers()
            self._made = Backbone(self._place)
        self._made.step(channel)


class RemoteHead(Head):
    """One that sends its results to the test."""

    def __init__(self, results: socket.socket) -> None:
        super().__init__()
        self._results = results

    def _deliver(self, number: int) -> None:
        self._results.send(RESULT.pack(number))


class Child:
    """A process that works for ever, and ``channel``, this side of a socket to it; killed in the end.

    Args:
        start: given this side and the other, starts the process, which has the other alone, and returns its number.
    """

    def __init__(self, start: Callable[[socket.socket, socket.socket], int]) -> None:
        self.channel, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(WAIT_S)
        with there:
            self._pid = start(self.channel, there)

    @classmethod
    def forked(cls, work: Callable[[socket.socket], object]) -> Child:
        """One that has all that this process has, and starts in a millisecond."""
        return cls(lambda here, there: _fork(work, here, there))

    @classmethod
    def spawned(cls, policy: Policy) -> Child:
        """A backbone that has nothing of this process: CUDA does not survive a fork."""
        return cls(lambda _, there: _spawn(policy, there))

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


def _fork(work: Callable[[socket.socket], object], here: socket.socket, there: socket.socket) -> int:
    child = os.fork()
    if child == 0:
        gc.disable()  # what it would free may be the parent's: CUDA's memory, say, which no fork may touch
        here.close()  # else it would not hear that its parent is gone
        try:
            while True:
                work(there)
        finally:
            os._exit(1)
    return child


def _spawn(policy: Policy, there: socket.socket) -> int:
    command = [sys.executable, __file__, policy.value, str(module.FOLDER), str(there.fileno())]
    process = subprocess.Popen(command, pass_fds=[there.fileno()])
    process.returncode = 0  # whoever kills it waits for it
    return process.pid


def kill_readers(backbone: Backbone, kills: int, between: Callable[[], object] = lambda: None) -> Counter[int]:
    """Heads come one after the other and are killed while frames flow; returns how often each result came.

    Args:
        between: called after each death.
    """
    rng = random.Random(1)
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

        for turn in range(kills):
            known = fetch()
            with Child.forked(RemoteHead(from_heads).step) as child:
                child.channel.setblocking(False)
                end = time.monotonic() + WAIT_S
                while fetch() == known:  # the stream goes on
                    backbone.step(child.channel)
                    assert time.monotonic() < end, (turn, backbone.pool)
                end = time.monotonic() + rng.uniform(0, LIFE_S)
                while time.monotonic() < end:
                    backbone.step(child.channel)
            between()
            backbone.pass_time()
        backbone.drain()
        fetch()
    return delivered


def read_until_killed(head: Head, child: Child, life_s: float) -> list[int | None]:
    """Handles of a backbone that is killed in the end; returns what became of each, all that came."""
    numbers = [head.step(child.channel) for _ in range(2 * SLOTS)]  # slots come back to it
    end = time.monotonic() + life_s
    while time.monotonic() < end:
        numbers.append(head.step(child.channel))
    child.kill()
    with suppress(EOFError):
        while True:  # what it sent before is still good
            numbers.append(head.step(child.channel))
    return numbers


def main() -> None:
    """The spawned backbone: POLICY FOLDER FILE-DESCRIPTOR."""
    policy, folder, number = sys.argv[1:]
    module.FOLDER = Path(folder)
    place = HOST if policy == Policy.HOST.value else Place(Policy(policy), torch.device("cuda", 0))
    backbone = OneBackbone(place)
    with socket.socket(fileno=int(number)) as channel:
        while True:
            backbone.step(channel)


if __name__ == "__main__":
    main()
