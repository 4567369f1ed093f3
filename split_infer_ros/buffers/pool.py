"""Pools of slots with memory behind them: what the backbone and the head need of one, and the one in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from torch import Tensor

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.buffers.slots import Lease, Outcome, SlotLeases
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import HandleError

HOST = Place()
LEASE_S = 5.0


class FeatureReader(Protocol):
    """A head's access to the slots of a pool, wherever it lies."""

    def take(self, lease: Lease) -> None:
        """Begin to read; until release the slot is the reader's. Raises HandleError if it cannot be."""

    def views(self, lease: Lease, batch: int) -> tuple[Tensor, ...]:
        """The tensors of ``batch`` images in the slot of a lease: (batch, *shape) each."""

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Give the slot back and say what became of its frames. Raises HandleError if it was not the reader's."""


class SlotPool:
    """Slots of memory of this process, laid out for one split point and batch size.

    Args:
        layout: the tensors of one batch.
        slots: how many batches may be between backbone and head.
        place: which memory, and where the backbone runs.
        lease_s: how long a reader may leave a published slot untouched, seconds.
        released: called with each lease that a reader gives back and its outcome, on the reader's thread.

    Raises:
        ConfigurationError: the memory cannot be had; nothing was kept.
    """

    segment = ""  # no other process finds it

    def __init__(
        self,
        layout: Layout,
        slots: int,
        place: Place = HOST,
        lease_s: float = LEASE_S,
        released: Callable[[Lease, Outcome], None] | None = None,
    ) -> None:
        self.layout = layout
        self.leases = SlotLeases(slots, lease_s)
        self._lease_s = lease_s
        self._released = released
        self.slots = SlotMemory.make(layout, slots, place)
        _POOLS[self.leases.pool] = self

    def __repr__(self) -> str:
        return f"SlotPool({self.bytes:,} bytes, {self.memory}, {self.leases!r})"

    @property
    def bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots.bytes

    @property
    def memory(self) -> str:
        """What they lie in."""
        return self.slots.policy.value

    def views(self, lease: Lease, batch: int) -> tuple[Tensor, ...]:
        """The tensors of ``batch`` images in the slot of a lease, as views: (batch, *shape) each."""
        return self.slots.views(lease.slot, batch)

    def acquire(self) -> Lease | None:
        """A free slot to write into, or None while there is none."""
        return self.leases.acquire()

    def publish(self, lease: Lease, now: float) -> None:
        """What is in the slot may be read."""
        self.leases.publish(lease, now)

    def take(self, lease: Lease) -> None:
        """Begin to read; until release the slot is the reader's.

        Raises:
            HandleError: the slot has moved on, is being read, or belongs to another pool.
        """
        self.leases.take(lease)

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """The reader is done: give the slot back and say what became of its frames.

        Raises:
            HandleError: the slot was no longer the reader's; the outcome does not count.
        """
        self.leases.release(lease)
        if self._released is not None:
            self._released(lease, outcome)

    def give_up(self, lease: Lease) -> bool:
        """Take the slot back unless a reader is at it or gave it back; returns whether it was taken back."""
        return self.leases.revoke(lease)

    def collect(self, now: float) -> list[tuple[Lease, Outcome]]:
        """Take back every slot whose reader did not come in time; one that waits behind another is not late."""
        self.leases.renew_if_read(now)
        return [(lease, Outcome(0, DropReason.LEASE_EXPIRED)) for lease in self.leases.expire(now)]

    def orphaned(self, before: float) -> list[tuple[Lease, Outcome]]:
        """Take back every slot that was published ``before`` (steady clock) to a reader who is known to have died."""
        return [(lease, Outcome(0, DropReason.READER_DIED)) for lease in self.leases.expire(before + self._lease_s)]

    def close(self) -> None:
        """Let go of the memory, which goes with the last view of it."""
        self.slots.close()


_POOLS: WeakValueDictionary[int, SlotPool] = WeakValueDictionary()


def find_pool(lease: Lease) -> SlotPool:
    """The pool of this process in which a lease lies.

    Raises:
        HandleError: it is another process's, or was freed.
    """
    pool = _POOLS.get(lease.pool)
    if pool is None:
        raise HandleError("foreign", f"{lease} lies in no pool of this process: its backbone ran elsewhere or is gone.")
    return pool
