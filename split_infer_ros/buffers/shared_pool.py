"""A slot pool in shared memory, for the process that owns it. Another process of this host reads it."""

from __future__ import annotations

from collections.abc import Callable

from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.memory_allocation import adopt
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.pool import HOST, LEASE_S
from split_infer_ros.buffers.segment import Segment
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.buffers.slot_table import NOTHING_YET, SharedState, SlotRecord, SlotTable
from split_infer_ros.buffers.slots import Lease, Outcome, SlotLeases
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError

# The length of a lease while no reader is attached, because the reader died or never came. On a busy machine, a living
# reader came more than 0.5 s late. With 2 s, a killed head counts as alive for 2 s.
ATTACH_S = 2.0


class SharedSlotPool:
    """A slot pool in shared memory, for the process that owns it and writes to its slots.

    Args:
        layout: the layout of one batch's tensors.
        leases: decides who may use which slot.
        segment: the shared memory.
        slots: the memory of the slots, which lies in the segment.
    """

    def __init__(self, layout: Layout, leases: SlotLeases, segment: Segment, slots: SlotMemory) -> None:
        self.layout = layout
        self.leases = leases
        self.slots = slots
        self._segment = segment
        self._table = SlotTable(segment)

    @classmethod
    def allocate(
        cls, layout: Layout, num_slots: int, place: Place = HOST, *, lease_s: float = LEASE_S
    ) -> SharedSlotPool:
        """Allocates a pool.

        Args:
            layout: the layout of one batch's tensors.
            num_slots: how many batches can be between backbone and head.
            place: the memory policy, and the device on which the backbone runs.
            lease_s: how many seconds a reader may leave a published slot untouched. Then ``collect`` takes it back.

        Raises:
            ConfigurationError: there is not enough memory. Nothing stays allocated.
        """
        leases = SlotLeases(num_slots, lease_s)
        segment = Segment.create(num_slots, layout.slot_bytes, leases.pool)
        try:
            slots = SlotMemory.allocate(
                layout, num_slots, place, make=lambda slot, place: adopt(place.policy, segment.slot(slot), place.device)
            )
        except ConfigurationError:
            segment.close()
            raise
        return cls(layout=layout, leases=leases, segment=segment, slots=slots)

    def __repr__(self) -> str:
        return f"SharedSlotPool({self.bytes:,} bytes in {self.segment}, {self.leases!r})"

    @property
    def segment(self) -> str:
        """The name under which readers find the pool."""
        return self._segment.name

    @property
    def bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots.bytes

    @property
    def memory(self) -> str:
        """The kind of memory that holds the slots, as a text for users."""
        policy = self.slots.policy
        return f"shared {policy.value}" if policy.needs_gpu else "shared"

    def with_policy(self, policy: Policy) -> None:
        """Returns None, because memory that another process maps serves only one policy."""

    def views(self, lease: Lease, batch: int) -> tuple[Values, ...]:
        """Returns views of the tensors of ``batch`` images in the slot of a lease, (batch, *shape) each."""
        return self.slots.views(lease.slot, batch)

    def acquire(self) -> Lease | None:
        """Returns a lease on a free slot to write into, or None while there is none."""
        self._segment.mend()
        lease = self.leases.acquire()
        if lease is not None:
            self._table.write(lease.slot, SlotRecord(SharedState.FREE, lease.generation))
        return lease

    def publish(self, lease: Lease, now: float) -> None:
        """Lets a reader take the slot of a lease. ``now`` is in seconds of the steady clock."""
        # The record is written first. Otherwise ``collect`` on another thread could treat the slot as damaged.
        self._table.write(lease.slot, SlotRecord(SharedState.READY, lease.generation))
        self.leases.publish(lease, now)

    def revoke(self, lease: Lease) -> bool:
        """Takes the slot of a lease back, unless a reader has the slot or is done with it.

        Returns:
            Whether this call took the slot back.
        """

        def outcome_unless_done(record: SlotRecord) -> Outcome | None:
            return None if record.state is SharedState.DONE else NOTHING_YET

        return self._reclaim(lease, outcome_unless_done) is not None

    def collect(self, now: float) -> list[tuple[Lease, Outcome]]:
        """Takes back every slot that its reader is done with. Also takes back slots that no living reader will read.

        These are slots of a reader that died, slots that nobody took within ``lease_s`` seconds, and damaged slots. If
        no reader is attached, the time is ``ATTACH_S``.

        Args:
            now: seconds of the steady clock.

        Returns:
            The lease of each of these slots, with the outcome of its batch.
        """
        self._segment.mend()
        collected = []
        shortened_by_s = 0.0 if self._segment.has_readers else self.leases.lease_s - ATTACH_S
        overdue = set(self.leases.ready(overdue_at=now + shortened_by_s))
        for lease in self.leases.ready():
            if self._table.state(lease.slot)[0] is SharedState.READY and lease not in overdue:
                continue
            outcome = self._reclaim(lease, _outcome_of)
            if outcome is not None:
                collected.append((lease, outcome))
        return collected

    def _reclaim(self, lease: Lease, find_outcome: Callable[[SlotRecord], Outcome | None]) -> Outcome | None:
        """Takes a slot back.

        Args:
            lease: the lease of the slot.
            find_outcome: called with the slot's record. Returns the batch's outcome, or None to leave the slot.

        Returns:
            The outcome; None if a reader has the slot, ``find_outcome`` left it, or the slot was taken back before.
        """
        if not self._segment.lock_slot(lease.slot):
            return None
        try:  # under the lock, no reader can take the slot after the record is read
            outcome = find_outcome(self._table.read(lease.slot))
            if outcome is not None and self.leases.revoke(lease):
                self._table.write(lease.slot, SlotRecord(SharedState.FREE, lease.generation))
                return outcome
            return None
        finally:
            self._segment.unlock_slot(lease.slot)

    def close(self) -> None:
        """Gives up the memory and removes its name, so that no new reader finds it."""
        self.slots.close()
        self._segment.close()


def _outcome_of(record: SlotRecord) -> Outcome:
    if record.state is SharedState.DONE:
        return record.outcome.checked()
    reasons = {SharedState.READING: DropReason.READER_DIED, SharedState.READY: DropReason.LEASE_EXPIRED}
    return Outcome(0, reasons.get(record.state, DropReason.DAMAGED_SLOT))
