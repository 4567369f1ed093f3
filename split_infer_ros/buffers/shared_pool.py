"""A pool of slots that another process of this host reads: the owner's side and the reader's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from split_infer_ros.buffers.layout import Layout, SlotViews, Strides
from split_infer_ros.buffers.memory import Memory, Place, adopt
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.pool import HOST, LEASE_S
from split_infer_ros.buffers.segment import Segment
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.buffers.slot_table import NOTHING_YET, SharedState, SlotRecord, SlotTable
from split_infer_ros.buffers.slots import Lease, Outcome, SlotLeases
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, HandleError

ATTACH_S = 0.5  # a lease is no longer than this where no reader is attached (it died, or never was)


class SharedSlotPool:
    """The owner's side.

    Args:
        layout: the tensors of one batch.
        slots: how many batches may be between backbone and head.
        place: how a GPU uses the memory, and where the backbone runs.
        lease_s: how long a reader may leave a published slot untouched.

    Raises:
        ConfigurationError: the memory cannot be had; nothing was kept.
    """

    def __init__(self, layout: Layout, slots: int, place: Place = HOST, lease_s: float = LEASE_S) -> None:
        self.layout = layout
        self.leases = SlotLeases(slots, lease_s)
        self._lease_s = lease_s
        self._segment = Segment.create(slots, layout.slot_bytes, self.leases.pool)
        self._table = SlotTable(self._segment)
        try:
            self.slots = SlotMemory.make(layout, slots, place, self._adopt)
        except ConfigurationError:
            self._segment.close()
            raise

    def __repr__(self) -> str:
        return f"SharedSlotPool({self.bytes:,} bytes in {self.segment}, {self.leases!r})"

    @property
    def segment(self) -> str:
        """Name under which readers find it."""
        return self._segment.name

    @property
    def bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots.bytes

    @property
    def memory(self) -> str:
        """What they lie in."""
        policy = self.slots.policy
        return "shared" if policy is Policy.HOST else f"shared {policy.value}"

    def views(self, lease: Lease, batch: int) -> tuple[Tensor, ...]:
        """The tensors of ``batch`` images in the slot of a lease, as views: (batch, *shape) each."""
        return self.slots.views(lease.slot, batch)

    def acquire(self) -> Lease | None:
        """A free slot to write into, or None while there is none."""
        self._segment.mend()
        lease = self.leases.acquire()
        if lease is not None:
            self._table.write(lease.slot, SlotRecord(SharedState.FREE, lease.generation))
        return lease

    def publish(self, lease: Lease, now: float) -> None:
        """What is in the slot may be read."""
        self.leases.publish(lease, now)
        self._table.write(lease.slot, SlotRecord(SharedState.READY, lease.generation))

    def give_up(self, lease: Lease) -> bool:
        """Take the slot back unless a reader is at it or is done with it; returns whether it was taken back."""
        return self._settle(lease, lambda record: None if record.state is SharedState.DONE else NOTHING_YET) is not None

    def collect(self, now: float) -> list[tuple[Lease, Outcome]]:
        """Take back every slot whose reader is done, died, or did not come in time."""
        self._segment.mend()
        found = []
        gone = 0.0 if self._segment.has_readers else self._lease_s - ATTACH_S
        overdue = set(self.leases.ready(overdue_at=now + gone))
        for lease in self.leases.ready():
            if self._table.state(lease.slot)[0] is SharedState.READY and lease not in overdue:
                continue
            outcome = self._settle(lease, self._outcome)
            if outcome is not None:
                found.append((lease, outcome))
        return found

    @staticmethod
    def _outcome(record: SlotRecord) -> Outcome:
        if record.state is SharedState.DONE:
            return record.outcome.checked()
        reasons = {SharedState.READING: DropReason.READER_DIED, SharedState.READY: DropReason.LEASE_EXPIRED}
        return Outcome(0, reasons.get(record.state, DropReason.DAMAGED_SLOT))

    def _settle(self, lease: Lease, judge: Callable[[SlotRecord], Outcome | None]) -> Outcome | None:
        """Take the slot back and return what ``judge`` makes of its record; None if a reader is at it, or by it."""
        if not self._segment.lock_slot(lease.slot):
            return None
        try:  # under the lock no reader comes between the look and the taking back
            outcome = judge(self._table.read(lease.slot))
            if outcome is not None and self.leases.revoke(lease):
                self._table.write(lease.slot, SlotRecord(SharedState.FREE, lease.generation))
                return outcome
            return None
        finally:
            self._segment.unlock_slot(lease.slot)

    def close(self) -> None:
        """Free the memory and its name."""
        self.slots.close()
        self._segment.close()

    def _adopt(self, slot: int, place: Place) -> Memory:
        return adopt(place.policy, torch.frombuffer(self._segment.slot(slot), dtype=torch.uint8), place.device)


class SharedSlotReader:
    """The reader's side, attached by name; lets go of the memory with its last user.

    Args:
        segment: the name that came with a handle.
        layout: what the reader's own model says must lie there.

    Raises:
        HandleError: there is no such segment, or it is not as the layout has it.
    """

    def __init__(self, segment: str, layout: Layout) -> None:
        self.layout = layout
        self._segment = Segment.attach(segment)
        self._table = SlotTable(self._segment)
        if self._segment.slot_bytes != layout.slot_bytes:
            held = self._segment.slot_bytes
            self._segment.close()
            raise HandleError(
                "foreign", f"Slots of {segment} have {held:,} bytes; this model's features need {layout.slot_bytes:,}."
            )
        self._slots = [
            SlotViews(layout, torch.frombuffer(self._segment.slot(index), dtype=torch.uint8))
            for index in range(self._segment.slots)
        ]

    @property
    def owner_lives(self) -> bool:
        """False once no new handle can come."""
        return self._segment.owner_lives

    def claim(self) -> bool:
        """Become the one reader that takes what is published; returns whether this one is. Ends with the process."""
        return self._segment.claim()

    def disclaim(self) -> None:
        """Leave what is published to another reader."""
        self._segment.disclaim()

    def is_ready(self, lease: Lease) -> bool:
        """True while the slot of a lease holds what was published, and nobody has taken it."""
        return self._holds(lease) and self._table.state(lease.slot) == (SharedState.READY, lease.generation)

    def views(self, lease: Lease, batch: int, strides: Sequence[Strides] | None = None) -> tuple[Tensor, ...]:
        """The tensors of ``batch`` images in the slot of a lease, as views: (batch, *shape) each.

        Args:
            lease: which was taken.
            batch: how many images were written.
            strides: of each tensor as it was written; row by row unless given.
        """
        return self._slots[lease.slot](batch, strides)

    def take(self, lease: Lease) -> None:
        """Begin to read; until release the slot is this process's.

        Raises:
            HandleError: the slot has moved on, is being read, or belongs to another pool.
        """
        if not self._holds(lease):
            raise HandleError("foreign", f"{lease} lies not in {self._segment.name}.")
        if not self._segment.is_whole:
            raise HandleError("foreign", f"{self._segment.name} was cut short; there is nothing to read at {lease}.")
        self._check(lease)  # before the lock too: a stale handle does not get in the owner's way
        if not self._segment.lock_slot(lease.slot):
            raise HandleError("busy", f"{lease} is being read by another process.")
        try:
            self._check(lease)
        except HandleError:
            self._segment.unlock_slot(lease.slot)
            raise
        self._table.write(lease.slot, SlotRecord(SharedState.READING, lease.generation))

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Done with the slot; the owner finds what became of its frames."""
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
