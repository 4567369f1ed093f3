"""The reader's side of a slot pool that another process of this host owns."""

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
    """A slot pool in shared memory, as a process that reads it sees it. The memory is freed with its last user.

    Args:
        layout: the layout of one batch's arrays.
        segment: the shared memory.
    """

    def __init__(self, layout: Layout, segment: Segment) -> None:
        self.layout = layout
        self._segment = segment
        self._table = SlotTable(segment)
        self._slots = [SlotViews(layout, np.frombuffer(segment.slot(slot), np.uint8)) for slot in range(segment.slots)]

    @classmethod
    def attach(cls, name: str, layout: Layout) -> SharedSlotReader:
        """Attaches a pool.

        Args:
            name: the name of the segment, which came with a handle.
            layout: the layout of the tensors that the reader's own model expects.

        Raises:
            HandleError: there is no such segment, or its slots do not fit the layout.
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
        """True while the owner's process lives. After its end, no new handle can come."""
        return self._segment.owner_lives

    def claim(self) -> bool:
        """Tries to become the one reader that takes published slots. Returns whether it succeeded.

        The claim ends with ``disclaim`` or with the process.
        """
        return self._segment.claim()

    def disclaim(self) -> None:
        """Leaves published slots to another reader."""
        self._segment.disclaim()

    def is_ready(self, lease: Lease) -> bool:
        """Returns whether the slot of a lease is published and nobody has taken it."""
        return self._holds(lease) and self._table.state(lease.slot) == (SharedState.READY, lease.generation)

    def views(self, lease: Lease, batch: int, strides: Sequence[Strides] | None = None) -> tuple[Array, ...]:
        """Returns views of the tensors of ``batch`` images in the slot of a lease, (batch, *shape) each.

        Args:
            lease: the lease of a slot that was taken.
            batch: number of images that were written.
            strides: the strides with which each tensor was written; None: contiguous tensors.
        """
        return self._slots[lease.slot](batch, strides)

    def take(self, lease: Lease) -> None:
        """Begins to read. The slot belongs to this process until ``release``.

        Raises:
            HandleError: the lease is stale, the slot is being read, or it belongs to another pool.
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
        """Gives the slot back, and writes the outcome of its frames down for the owner."""
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
    """Reads one batch of a pool in shared memory.

    Args:
        reader: the reader of the pool.
        strides: the strides of the batch's tensors in the slot.
        released: called with the lease and the outcome once the slot was given back.
    """

    def __init__(
        self, reader: SharedSlotReader, strides: tuple[Strides, ...], released: Callable[[Lease, Outcome], None]
    ) -> None:
        self._reader = reader
        self._strides = strides
        self._released = released

    def take(self, lease: Lease) -> None:
        """Begins to read.

        Raises:
            HandleError: the slot cannot be read, for example because it holds another batch by now.
        """
        self._reader.take(lease)

    def views(self, lease: Lease, batch: int) -> tuple[Array, ...]:
        """Returns views of the tensors of ``batch`` images, without copying."""
        return self._reader.views(lease, batch, self._strides)

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Gives the slot back."""
        self._reader.release(lease, outcome)
        self._released(lease, outcome)
