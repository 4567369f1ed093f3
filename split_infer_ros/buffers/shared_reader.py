"""Lets a process read the slots of a pool that another process of this host owns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from split_infer_ros.buffers.host_arrays import Array
from split_infer_ros.buffers.layout import Layout, SlotViews, Strides
from split_infer_ros.buffers.segment import Segment
from split_infer_ros.buffers.slot_table import SharedState, SlotRecord, SlotTable
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import HandleError


class SharedSlotReader:
    """Gives a process read access to a slot pool in shared memory. Another process owns the pool and writes to it.

    The owner removes the pool's name when it closes the pool. The memory is freed when no process maps it any longer.

    Args:
        layout: the layout of the features of one batch.
        segment: the shared memory with the pool's slots.
    """

    def __init__(self, layout: Layout, segment: Segment) -> None:
        self.layout = layout
        self._segment = segment
        self._table = SlotTable(segment)
        self._slots = [SlotViews(layout, np.frombuffer(segment.slot(slot), np.uint8)) for slot in range(segment.slots)]

    @classmethod
    def attach(cls, name: str, layout: Layout) -> SharedSlotReader:
        """Opens the pool of another process.

        Args:
            name: the name of the shared memory. A handle brings it.
            layout: the layout of the features that the reader's own model expects.

        Raises:
            HandleError: there is no shared memory of this name, or its slots do not have the size of the layout.
        """
        segment = Segment.attach(name)
        found, expected = segment.slot_bytes, layout.slot_bytes
        if found != expected:
            segment.close()
            raise HandleError(
                "foreign", f"Slots of {name} have {found:,} bytes; this model's features need {expected:,}."
            )
        return cls(layout, segment)

    @property
    def owner_lives(self) -> bool:
        """True while the process that owns the pool lives. Once that process has ended, no new handle can come."""
        return self._segment.owner_lives

    def claim(self) -> bool:
        """Tries to become the only reader that takes published slots. Returns whether it succeeded.

        This object stays the only reader until ``disclaim`` or the end of the process.
        """
        return self._segment.claim()

    def disclaim(self) -> None:
        """Ends the claim, so that another reader may take published slots."""
        self._segment.disclaim()

    def is_ready(self, lease: Lease) -> bool:
        """Returns whether the slot of a lease is published and no reader has taken it yet."""
        return self._holds(lease) and self._table.state(lease.slot) == (SharedState.READY, lease.generation)

    def views(self, lease: Lease, batch: int, strides: Sequence[Strides] | None = None) -> tuple[Array, ...]:
        """Returns a view of each tensor in a slot, (batch, *shape). Nothing is copied.

        Args:
            lease: the lease of a slot that this process has taken.
            batch: number of images in the slot.
            strides: the strides of each tensor. None means contiguous tensors.
        """
        return self._slots[lease.slot](batch, strides)

    def take(self, lease: Lease) -> None:
        """Takes a slot for reading. The slot belongs to this process until ``release``.

        Raises:
            HandleError: the lease is stale, its slot is being read, the lease is of another pool, or somebody cut the
                pool's file short.
        """
        if not self._holds(lease):
            raise HandleError("foreign", f"{lease} does not lie in {self._segment.name}.")
        if not self._segment.is_whole:
            raise HandleError("foreign", f"{self._segment.name} was cut short; there is nothing to read at {lease}.")
        self._check(lease)  # also before the lock, so that a stale handle does not take a lock that the owner needs
        if not self._segment.lock_slot(lease.slot):
            raise HandleError("busy", f"{lease} is being read by another process.")
        try:
            self._check(lease)
        except HandleError:
            self._segment.unlock_slot(lease.slot)
            raise
        self._table.write(lease.slot, SlotRecord(SharedState.READING, lease.generation))

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Gives the slot of a lease back to the owner, and tells the owner the outcome of the slot's frames."""
        self._table.write(lease.slot, SlotRecord(SharedState.DONE, lease.generation, outcome))
        self._segment.unlock_slot(lease.slot)

    def _holds(self, lease: Lease) -> bool:
        return bool(lease.pool == self._segment.pool) and 0 <= lease.slot < self._segment.slots

    def _check(self, lease: Lease) -> None:
        state, generation = self._table.state(lease.slot)
        if generation != lease.generation:
            raise HandleError("stale", f"{lease} is stale: its slot is at generation {generation}.")
        if state is SharedState.READING:
            raise HandleError("busy", f"{lease} is being read by another process.")
        if state is not SharedState.READY:
            raise HandleError("stale", f"{lease} is stale: its slot was given back.")


class SharedBatchReader:
    """Reads one batch from a slot in shared memory.

    Args:
        reader: reads the pool to which the slot belongs.
        strides: the strides of each of the batch's tensors in the slot.
        released: called with the lease and the outcome after the slot was given back.
    """

    def __init__(
        self, reader: SharedSlotReader, strides: tuple[Strides, ...], released: Callable[[Lease, Outcome], None]
    ) -> None:
        self._reader = reader
        self._strides = strides
        self._released = released

    def take(self, lease: Lease) -> None:
        """Takes the slot of the batch for reading.

        Raises:
            HandleError: the slot cannot be read, for example because it holds another batch meanwhile.
        """
        self._reader.take(lease)

    def views(self, lease: Lease, batch: int) -> tuple[Array, ...]:
        """Returns a view of each tensor of a batch of ``batch`` images, without a copy."""
        return self._reader.views(lease, batch, self._strides)

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Gives the slot back to the owner, with the outcome of the batch's frames."""
        self._reader.release(lease, outcome)
        self._released(lease, outcome)
