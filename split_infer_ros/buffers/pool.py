"""The slot pool of one process, and the interface through which a head reads any slot pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.buffers.slots import Lease, Outcome, SlotLeases
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import HandleError

Released = Callable[[Lease, Outcome], None]

HOST = Place()
LEASE_S = 5.0


class FeatureReader(Protocol):
    """A head's access to the slots of a pool, in this process or another one."""

    def take(self, lease: Lease) -> None:
        """Takes the slot of a lease for reading. The slot belongs to this reader until ``release``.

        Raises:
            HandleError: the slot cannot be read.
        """

    def views(self, lease: Lease, batch: int) -> tuple[Values, ...]:
        """Returns the tensors of ``batch`` images in the slot of a lease, (batch, *shape) each."""

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Gives the slot of a lease back to its pool, and reports what became of the frames of its batch.

        Raises:
            HandleError: the slot does not belong to the reader.
        """


class SlotPool:
    """A fixed number of slots in this process's memory, laid out for one split point and batch size.

    Args:
        layout: the layout of one batch's tensors.
        leases: decides who may use which slot.
        slots: the memory of the slots.
        released: called on the reader's thread after ``release``, with the lease and the outcome.
    """

    segment = ""  # other processes cannot find this pool

    def __init__(self, layout: Layout, leases: SlotLeases, slots: SlotMemory, released: Released | None = None) -> None:
        self.layout = layout
        self.leases = leases
        self.slots = slots
        self._released = released
        _POOLS.setdefault(leases.pool, self)  # the first one, if the same slots serve other policies as well

    @classmethod
    def allocate(
        cls,
        layout: Layout,
        num_slots: int,
        place: Place = HOST,
        *,
        lease_s: float = LEASE_S,
        released: Released | None = None,
    ) -> SlotPool:
        """Allocates a pool.

        Args:
            layout: the layout of one batch's tensors.
            num_slots: how many batches can be between backbone and head.
            place: the memory policy, and the device on which the backbone runs.
            lease_s: how many seconds a reader may leave a published slot untouched. Then ``collect`` takes it back.
            released: called on the reader's thread after ``release``, with the lease and the outcome.

        Raises:
            ConfigurationError: there is not enough memory. Nothing stays allocated.
        """
        return cls(
            layout=layout,
            leases=SlotLeases(num_slots, lease_s),
            slots=SlotMemory.allocate(layout, num_slots, place),
            released=released,
        )

    def __repr__(self) -> str:
        return f"SlotPool({self.bytes:,} bytes, {self.memory}, {self.leases!r})"

    @property
    def bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots.bytes

    @property
    def memory(self) -> str:
        """The kind of memory that holds the slots, as a text for users."""
        return self.slots.policy.value

    def with_policy(self, policy: Policy) -> SlotPool | None:
        """Returns a pool of the same slots and leases under another policy; None if the memory does not support it."""
        slots = self.slots.with_policy(policy)
        return None if slots is None else SlotPool(self.layout, self.leases, slots, self._released)

    def views(self, lease: Lease, batch: int) -> tuple[Values, ...]:
        """Returns views of the tensors of ``batch`` images in the slot of a lease, (batch, *shape) each."""
        return self.slots.views(lease.slot, batch)

    def acquire(self) -> Lease | None:
        """Returns a lease on a free slot to write into, or None while there is none."""
        return self.leases.acquire()

    def publish(self, lease: Lease, now: float) -> None:
        """Lets a reader take the slot of a lease. ``now`` is in seconds of the steady clock."""
        self.leases.publish(lease, now)

    def take(self, lease: Lease) -> None:
        """Takes the slot of a lease for reading. The slot belongs to the reader until ``release``.

        Raises:
            HandleError: the lease is stale or of another pool, or its slot is not published, or taken already.
        """
        self.leases.take(lease)

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Frees the slot of a lease, and reports what became of its frames. Only the slot's reader calls this.

        Raises:
            HandleError: the slot no longer belongs to the reader. The outcome is then ignored.
        """
        self.leases.release(lease)
        if self._released is not None:
            self._released(lease, outcome)

    def revoke(self, lease: Lease) -> bool:
        """Takes the slot of a lease back, unless a reader has the slot or gave it back.

        Returns:
            Whether this call took the slot back.
        """
        return self.leases.revoke(lease)

    def collect(self, now: float) -> list[tuple[Lease, Outcome]]:
        """Takes back every published slot that no reader took within ``lease_s`` seconds.

        While any slot is being read, the time of the others starts anew.

        Args:
            now: seconds of the steady clock.

        Returns:
            The lease of each of these slots, with an outcome that says that no frame was published.
        """
        self.leases.renew_if_read(now)
        return [(lease, Outcome(0, DropReason.LEASE_EXPIRED)) for lease in self.leases.expire(now)]

    def reclaim_orphans(self, before: float) -> list[tuple[Lease, Outcome]]:
        """Takes back every slot that was published before a time. Call it once the reader is known to have died.

        Args:
            before: seconds of the steady clock.

        Returns:
            The lease of each of these slots, with an outcome that says that no frame was published.
        """
        return [
            (lease, Outcome(0, DropReason.READER_DIED)) for lease in self.leases.expire(before + self.leases.lease_s)
        ]

    def close(self) -> None:
        """Gives up the slots' memory. The memory is freed when its last view is collected."""
        self.slots.close()


_POOLS: WeakValueDictionary[int, SlotPool] = WeakValueDictionary()


def find_pool(lease: Lease) -> SlotPool:
    """Returns the pool of this process to which a lease belongs.

    Raises:
        HandleError: the pool is in another process, or was freed.
    """
    pool = _POOLS.get(lease.pool)
    if pool is None:
        raise HandleError("foreign", f"{lease} lies in no pool of this process: its backbone ran elsewhere or is gone.")
    return pool
