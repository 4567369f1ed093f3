"""Hands over a batch's features without a model: through the slot pool ("ring"), and through queues that carry buffers.

A hand-over lasts from the moment that the producer asks for memory until the producer has this memory back. With every
rival, the producer writes one byte to each page: just enough to make the memory exist.
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
    """Makes a hand-over through the ring: the producer's part, then the consumer's part.

    Args:
        pool: the ring.
        write: writes the features. It gets the memory of a slot.
    """
    lease = pool.acquire()
    assert lease is not None
    write(*map(as_tensor, pool.views(lease, 1)))
    pool.publish(lease, time.monotonic())
    pool.take(lease)
    pool.views(lease, 1)
    pool.release(lease, DONE)


def by_queue(waiting: queue.Queue[Tensor], buffer: Tensor) -> None:
    """Makes a hand-over of a buffer through a queue. The buffer is freed when the call returns."""
    write(buffer)
    waiting.put(buffer)
    waiting.get()


def by_shared_ring(pool: SharedSlotPool, connection: Connection, index: int) -> None:
    """Makes the producer's part of a hand-over through slots in shared memory.

    Args:
        pool: the pool of slots.
        connection: the pipe to the consumer. The lease goes through it, and the consumer's answer comes back.
        index: the index of the pool, by which the consumer knows it.

    Raises:
        RuntimeError: the consumer did not give the slot back.
    """
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
    """Makes the producer's part of a hand-over through a queue between processes.

    Args:
        tensors: the queue.
        connection: the pipe to the consumer, which announces the buffer. The consumer's answer comes back through it.
        size: bytes of the buffer.
    """
    buffer = torch.empty(size, dtype=torch.uint8)
    write(buffer)
    connection.send_bytes(b"\xff")
    tensors.put(buffer)
    connection.recv_bytes()


def consume(connection: Connection, tensors: Any, names: Mapping[int, str]) -> None:
    """Runs in the consumer's process: makes the consumer's part of each hand-over until the pipe ends.

    Args:
        connection: the pipe to the producer.
        tensors: the queue of the hand-overs through a queue.
        names: the name of the shared memory of each pool, by the bytes of its slots.
    """
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
    """Returns the layout of a slot of ``size`` bytes."""
    return Layout([TensorSpec("features", (size,), BYTE)], 1)


def from_the_system(size: int) -> Tensor:
    """Returns memory that was not used before, as an allocator gets it from the system."""
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


def write(features: Tensor) -> None:
    """Writes one byte to each page of the features."""
    features.view(-1)[:: mmap.PAGESIZE].fill_(1)
