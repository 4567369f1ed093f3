"""A backbone and a head around a pool in shared memory, in processes that tests kill, without ROS or a model.

Each slot carries random features and their checksum. The frame's number is part of the checksum. So half-written
features are noticed, and features of another frame too.
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

import numpy as np
import torch

from split_infer_ros.buffers import segment as module
from split_infer_ros.buffers import shared_pool
from split_infer_ros.buffers.host_arrays import FLOAT32, Array, as_tensor
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.pool import HOST
from split_infer_ros.buffers.segment import remove_leftovers
from split_infer_ros.buffers.shared_pool import ATTACH_S, SharedSlotPool
from split_infer_ros.buffers.shared_reader import SharedSlotReader
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import HandleError
from split_infer_ros.server.ledger import Ledger, Ticket

LAYOUT = Layout([TensorSpec("features", (64, 64), FLOAT32), TensorSpec("checksum", (1,), np.dtype(np.int64))], 1)
SLOTS = 3
HANDLE = struct.Struct("<Q64sQQQ")  # frame, segment, pool, slot, generation
RESULT = struct.Struct("<Q")
LIFE_S = 4e-3  # the longest life of a process, once frames flow
WORK_S = 2e-4  # that a head takes for one frame
WAIT_S = 60.0
WRONG = 2**32 - 1  # the number of a frame that differs from what was sent


def checksum(number: int, features: Array) -> int:
    """Returns the checksum of a frame's number and features."""
    return zlib.crc32(memoryview(features), number)


class Backbone:
    """Writes frames to the slots of a pool, and sends handles through a socket. A frame is only a number.

    Args:
        place: the memory of the pool, and the device on which the features are made.

    Attributes:
        pool: the pool.
        ledger: counts the frames.
        published: the numbers of the frames whose results were published, according to the outcomes in their slots.
    """

    def __init__(self, place: Place = HOST) -> None:
        self.pool = SharedSlotPool.allocate(LAYOUT, SLOTS, place)
        self._device = place.device if torch.cuda.is_available() else "cpu"  # a simulated GPU takes no part here
        self._random = np.random.default_rng()
        self.ledger = Ledger()
        self.published: list[int] = []
        self._under_way: dict[Lease, tuple[int, Ticket]] = {}
        self._clock_ahead = 0.0

    def step(self, channel: socket.socket) -> None:
        """Settles the frames of slots that heads gave back, and sends one frame if a slot is free."""
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
        except OSError:  # there is no head: the lease will end
            return

    def _compute(self, lease: Lease, number: int) -> None:
        features = self._random.random((1, 64, 64), np.float32)
        values = features, np.array([[checksum(number, features)]])
        self.pool.slots.write(lease.slot, [as_tensor(each).to(self._device) for each in values])
        if self.pool.slots.needs_copy:
            self.pool.slots.fetch(lease.slot, 1)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def drain(self) -> None:
        """Waits until all slots are free again. Call it after the last head has ended."""
        self.pass_time()
        end = time.monotonic() + WAIT_S
        while self._under_way:
            assert time.monotonic() < end, self.pool
            self._collect()

    def pass_time(self) -> None:
        """Advances the backbone's clock by the time that a pool without a reader waits for a reader."""
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
    """Receives handles from a socket, and checks the features in their slots. ``step`` returns the frames' numbers."""

    def __init__(self) -> None:
        self.readers: dict[str, SharedSlotReader] = {}

    def step(self, channel: socket.socket) -> int | None:
        """Reads the slot of one handle.

        Returns:
            The number of the frame; ``WRONG`` if its features are wrong; None if the handle is stale.

        Raises:
            EOFError: the backbone has ended, and everything that it sent was read.
        """
        packet = channel.recv(HANDLE.size)
        if not packet:
            raise EOFError
        number, name, *lease_fields = HANDLE.unpack(packet)
        segment, lease = name.rstrip(b"\0").decode(), Lease(*lease_fields)
        try:
            if segment not in self.readers:
                reader = SharedSlotReader.attach(segment, LAYOUT)
                self.readers = {other: old for other, old in self.readers.items() if old.owner_lives}
                self.readers[segment] = reader
            self.readers[segment].take(lease)
        except HandleError:
            return None
        start = time.monotonic()
        features, expected = self.readers[segment].views(lease, 1)
        right = checksum(number, features) == expected.item()
        time.sleep(WORK_S)
        self._deliver(number if right else WRONG)
        now = time.monotonic()
        self.readers[segment].release(lease, Outcome(1, "head_error", start, now, now))
        return number if right else WRONG

    def _deliver(self, number: int) -> None:
        """Publishes a result."""


class OneBackbone:
    """A backbone that is made at its first step, so in the process that runs it."""

    def __init__(self, place: Place = HOST) -> None:
        self._place = place
        self._made: Backbone | None = None

    def step(self, channel: socket.socket) -> None:
        """Makes the backbone if there is none, and runs one step of it."""
        if self._made is None:
            remove_leftovers()
            self._made = Backbone(self._place)
        self._made.step(channel)


class RemoteHead(Head):
    """A head that sends the number of each frame that it has read through a socket to the test."""

    def __init__(self, results: socket.socket) -> None:
        super().__init__()
        self._results = results

    def _deliver(self, number: int) -> None:
        self._results.send(RESULT.pack(number))


class Child:
    """A process that works until it is killed, and a socket to it.

    Args:
        start: takes both sides of a socket, starts a process that has only the second side, and returns its id.

    Attributes:
        channel: this side of the socket.
    """

    def __init__(self, start: Callable[[socket.socket, socket.socket], int]) -> None:
        self.channel, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(WAIT_S)
        with there:
            self._pid = start(self.channel, there)

    @classmethod
    def forked(cls, work: Callable[[socket.socket], object]) -> Child:
        """Starts a fork of this process that calls ``work`` again and again. It starts within a millisecond."""
        return cls(lambda here, there: _fork(work, here, there))

    @classmethod
    def spawned(cls, policy: Policy) -> Child:
        """Starts a backbone in a new process, because CUDA does not survive a fork. ``policy`` is that of its pool."""
        return cls(lambda _, there: _spawn(policy, there))

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self.channel.close()

    def kill(self) -> None:
        """Kills the process with SIGKILL, if it still runs."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def _fork(work: Callable[[socket.socket], object], here: socket.socket, there: socket.socket) -> int:
    child = os.fork()
    if child == 0:
        gc.disable()  # it could free objects of the parent, such as CUDA's memory, which no fork may touch
        here.close()  # otherwise it would not notice that its parent is gone
        try:
            while True:
                work(there)
        finally:
            os._exit(1)
    return child


def _spawn(policy: Policy, there: socket.socket) -> int:
    command = [sys.executable, __file__, policy.value, str(module.FOLDER), str(there.fileno())]
    process = subprocess.Popen(command, pass_fds=[there.fileno()])
    process.returncode = 0  # ``kill`` waits for it
    return process.pid


def kill_readers(backbone: Backbone, kills: int, between: Callable[[], object] = lambda: None) -> Counter[int]:
    """Starts heads one after the other, and kills each while frames flow.

    Args:
        backbone: sends the frames.
        kills: how many heads to kill.
        between: called after each death.

    Returns:
        How often the result of each frame came, by the number of the frame.
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
            results_before = fetch()
            with Child.forked(RemoteHead(from_heads).step) as child:
                child.channel.setblocking(False)
                end = time.monotonic() + WAIT_S
                while fetch() == results_before:  # frames flow on
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
    """Reads all handles of a backbone, and kills the backbone after ``life_s`` seconds.

    Returns the result of ``Head.step`` for each handle.
    """
    numbers = [
        head.step(child.channel) for _ in range(2 * SLOTS)
    ]  # more than the slots: they come back to the backbone
    end = time.monotonic() + life_s
    while time.monotonic() < end:
        numbers.append(head.step(child.channel))
    child.kill()
    with suppress(EOFError):
        while True:  # what it sent before is still good
            numbers.append(head.step(child.channel))
    return numbers


def main() -> None:
    """Runs the spawned backbone. Its arguments are POLICY FOLDER FILE-DESCRIPTOR."""
    policy, folder, number = sys.argv[1:]
    module.FOLDER = Path(folder)
    shared_pool.ATTACH_S = WAIT_S  # a busy machine may hold up the head
    place = HOST if policy == Policy.HOST.value else Place(Policy(policy), torch.device("cuda", 0))
    backbone = OneBackbone(place)
    with socket.socket(fileno=int(number)) as channel:
        while True:
            backbone.step(channel)


if __name__ == "__main__":
    main()
