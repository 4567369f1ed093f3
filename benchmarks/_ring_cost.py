"""What handing over a batch's features costs, the model left out: by the ring, and by queues that carry buffers.

A hand-over is timed from the moment that the producer asks for memory until that memory is its own again. The producer
writes one byte of each page, on either side, so that the memory is there, and as little else as that takes.
"""

from __future__ import annotations

import mmap
import multiprocessing
import queue
import struct
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.pool import FeaturePool
from split_infer_ros.buffers.shared_pool import SharedPool, SharedPoolReader
from split_infer_ros.buffers.slots import Lease, Outcome

RING, ALONE, FRESH = "ring", "ring, nothing written", "queue.Queue, fresh buffer"
REUSED, PROCESS_QUEUE = "queue.Queue, torch.empty", "multiprocessing.Queue"
SIZES = (268_800, 4_915_200, 19_660_800)  # bytes of features: a head's last cut, an early one, a batch of 4 of it
SLOTS = 4
DONE = Outcome(1, "head_error", 1.0, 2.0, 3.0)
_LEASE = struct.Struct("<QIQ")


def in_process(rounds: int) -> dict[tuple[str, int], list[float]]:
    """Seconds of each hand-over, by rival and bytes; the rivals take turns."""
    found: dict[tuple[str, int], list[float]] = {}
    for size in SIZES:
        pool = FeaturePool(layout(size), SLOTS)
        waiting: queue.Queue[Tensor] = queue.Queue()
        rivals: dict[str, Callable[[], None]] = {
            RING: lambda pool=pool: by_ring(pool, write),
            ALONE: lambda pool=pool: by_ring(pool, lambda _: None),
            FRESH: lambda waiting=waiting, size=size: by_queue(waiting, from_the_system(size)),
            REUSED: lambda waiting=waiting, size=size: by_queue(waiting, torch.empty(size, dtype=torch.uint8)),
        }
        for turn in range(rounds + 1):  # the first warms up
            for name, hand_over in rivals.items():
                begin = time.perf_counter()
                hand_over()
                taken = time.perf_counter() - begin
                if turn:
                    found.setdefault((name, size), []).append(taken)
    return found


def by_ring(pool: FeaturePool, write: Callable[[Tensor], object]) -> None:
    """Producer's and consumer's part, one after the other."""
    lease = pool.acquire()
    assert lease is not None
    write(*pool.views(lease, 1))
    pool.publish(lease, time.monotonic())
    pool.take(lease)
    pool.views(lease, 1)
    pool.release(lease, DONE)


def by_queue(waiting: queue.Queue[Tensor], buffer: Tensor) -> None:
    """The same with a buffer, which goes with its last user: here, on return."""
    write(buffer)
    waiting.put(buffer)
    waiting.get()


def across_processes(rounds: int) -> dict[tuple[str, int], list[float]]:
    """Seconds of each hand-over to another process and back, by rival and bytes; the rivals take turns."""
    found: dict[tuple[str, int], list[float]] = {}
    context = multiprocessing.get_context("spawn")
    tensors: Any = context.Queue()
    pools = {size: SharedPool(layout(size), SLOTS) for size in SIZES}
    ours, theirs = context.Pipe()
    names = {size: pool.segment for size, pool in pools.items()}
    child = context.Process(target=consume, args=(theirs, tensors, names), daemon=True)
    child.start()
    theirs.close()
    try:
        ours.recv_bytes()  # it is there
        for size, pool in pools.items():
            for turn in range(rounds + 1):
                for name in (RING, PROCESS_QUEUE):
                    begin = time.perf_counter()
                    if name == RING:
                        by_shared_ring(pool, ours, SIZES.index(size))
                    else:
                        by_process_queue(tensors, ours, size)
                    taken = time.perf_counter() - begin
                    if turn:
                        found.setdefault((name, size), []).append(taken)
    finally:
        ours.close()  # which ends it
        tensors.close()
        child.join(10.0)
        if child.is_alive():
            child.kill()
        for pool in pools.values():
            pool.close()
    return found


def by_shared_ring(pool: SharedPool, connection: Connection, index: int) -> None:
    """The producer's part; the lease goes through a pipe, as does the answer."""
    lease = pool.acquire()
    assert lease is not None
    write(*pool.views(lease, 1))
    now = time.monotonic()
    pool.publish(lease, now)
    connection.send_bytes(bytes([index]) + _LEASE.pack(lease.pool, lease.slot, lease.generation))
    connection.recv_bytes()
    if [outcome for _, outcome in pool.collect(now)] != [DONE]:
        raise RuntimeError(f"The other process did not give {lease} back.")


def by_process_queue(tensors: Any, connection: Connection, size: int) -> None:
    """The producer's part; the answer comes through the same pipe."""
    buffer = torch.empty(size, dtype=torch.uint8)
    write(buffer)
    connection.send_bytes(b"\xff")
    tensors.put(buffer)
    connection.recv_bytes()


def consume(connection: Connection, tensors: Any, names: dict[int, str]) -> None:
    """The other process, until the pipe ends."""
    readers = [SharedPoolReader(name, layout(size)) for size, name in names.items()]
    connection.send_bytes(b"ready")
    while True:
        try:
            kind, *packed = connection.recv_bytes()
        except (EOFError, OSError):
            return
        if kind == 0xFF:
            tensors.get()
        else:
            lease = Lease(*_LEASE.unpack(bytes(packed)))
            readers[kind].take(lease)
            readers[kind].views(lease, 1)
            readers[kind].release(lease, DONE)
        connection.send_bytes(b"done")


def layout(size: int) -> Layout:
    """A slot of so many bytes."""
    return Layout([TensorSpec("features", (size,), torch.uint8)], 1)


def from_the_system(size: int) -> Tensor:
    """Memory that was not used before; an allocator asks for it where it has none left."""
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


def write(features: Tensor) -> None:
    """A byte a page."""
    features.view(-1)[:: mmap.PAGESIZE].fill_(1)
