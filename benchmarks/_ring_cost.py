"""Handing over a batch's features, the model left out: by the ring, and by queues that carry buffers.

A hand-over lasts from the moment that the producer asks for memory until that memory is its own again. The producer
writes one byte of each page, on either side, so that the memory is there, and as little else as that takes.
"""

from __future__ import annotations

import mmap
import queue
import struct
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from split_infer_ros.buffers.host_arrays import BYTE, as_tensor
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.pool import SlotPool
from split_infer_ros.buffers.shared_pool import SharedSlotPool
from split_infer_ros.buffers.shared_reader import SharedSlotReader
from split_infer_ros.buffers.slots import Lease, Outcome

RING, ALONE, FRESH = "ring", "ring, nothing written", "queue.Queue, fresh buffer"
REUSED, PROCESS_QUEUE = "queue.Queue, torch.empty", "multiprocessing.Queue"
SIZES = (268_800, 4_915_200, 19_660_800)  # bytes at a detector's last split point, an early one, a batch of 4 there
SLOTS = 4
DONE = Outcome(1, "head_error", 1.0, 2.0, 3.0)
_LEASE = struct.Struct("<QIQ")


def by_ring(pool: SlotPool, write: Callable[[Tensor], object]) -> None:
    """Producer's and consumer's part, one after the other."""
    lease = pool.acquire()
    assert lease is not None
    write(*map(as_tensor, pool.views(lease, 1)))
    pool.publish(lease, time.monotonic())
    pool.take(lease)
    pool.views(lease, 1)
    pool.release(lease, DONE)


def by_queue(waiting: queue.Queue[Tensor], buffer: Tensor) -> None:
    """The same with a buffer, which goes with its last user: here, on return."""
    write(buffer)
    waiting.put(buffer)
    waiting.get()


def by_shared_ring(pool: SharedSlotPool, connection: Connection, index: int) -> None:
    """The producer's part; the lease goes through a pipe, as does the answer."""
    lease = pool.acquire()
    assert lease is not None
    write(*map(as_tensor, pool.views(lease, 1)))
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


def consume(connection: Connection, tensors: Any, names: Mapping[int, str]) -> None:
    """The other process, until the pipe ends."""
    readers = [SharedSlotReader.attach(name, layout(size)) for size, name in names.items()]
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
    return Layout([TensorSpec("features", (size,), BYTE)], 1)


def from_the_system(size: int) -> Tensor:
    """Memory that was not used before; an allocator asks for it where it has none left."""
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


def write(features: Tensor) -> None:
    """A byte a page."""
    features.view(-1)[:: mmap.PAGESIZE].fill_(1)
