"""Leases decide who may touch which slot of a pool. This module holds no slots' memory, and needs no torch or clock.

A slot goes through the states free, writing, ready, reading and free again. Each use of a slot has a new generation.
So a handle that outlived its use is recognised and refused. If no reader takes a ready slot, the slot is taken back
when its lease ends.
"""

from __future__ import annotations

import enum
import math
import secrets
import threading
from collections import Counter
from dataclasses import dataclass, replace

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, HandleError


class SlotState(enum.Enum):
    """The state of a slot in its pool."""

    FREE = "free"
    WRITING = "writing"
    READY = "ready"
    READING = "reading"


@dataclass(frozen=True, slots=True)
class Lease:
    """One use of one slot. A handle carries the lease from the backbone to the head, in place of the features.

    Attributes:
        pool: a random 63-bit identity of the pool.
        slot: the index in the pool.
        generation: how many times the slot was acquired, this use included.
    """

    pool: int
    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch, as its reader reports it.

    Attributes:
        published: how many of its frames, counted from the first, have published results.
        reason: why the other frames have none: the value of a ``DropReason``, or any text from another process.
        head_start, head_end: when the head partition ran, in seconds of this host's steady clock.
        delivered: when the results were published, on the same clock.
    """

    published: int
    reason: str
    head_start: float = math.nan
    head_end: float = math.nan
    delivered: float = math.nan

    def checked(self) -> Outcome:
        """Returns the outcome without impossible values. Use it for an outcome that another process reported.

        Impossible times become NaN. A reason that heads never give is replaced.
        """
        reason = DropReason.claimed_by_head(self.reason)
        if 0 <= self.head_start <= self.head_end <= self.delivered < math.inf:
            return replace(self, reason=reason)
        return Outcome(self.published, reason)


@dataclass(slots=True)
class _Slot:
    state: SlotState = SlotState.FREE
    generation: int = 0
    deadline: float = 0.0


class SlotLeases:
    """Gives leases on a fixed number of slots, and takes the slots back. Any thread may use this object.

    Args:
        num_slots: number of slots, at least 1.
        lease_s: how many seconds a ready slot is kept for its reader. Then ``expire`` takes it back.

    Attributes:
        pool: a random 63-bit identity of the pool.
        lease_s: the argument.
        refused: how many leases were refused, by reason.

    Raises:
        ConfigurationError: ``num_slots`` is less than 1.
    """

    def __init__(self, num_slots: int, lease_s: float) -> None:
        if num_slots < 1:
            raise ConfigurationError(f"A slot pool cannot have {num_slots} slots; it takes at least 1.")
        self.pool = secrets.randbits(63)
        self.lease_s = lease_s
        self._slots = [_Slot() for _ in range(num_slots)]
        self._free = list(range(num_slots))
        self._lock = threading.Lock()
        self.refused: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._slots)

    def __repr__(self) -> str:
        return f"SlotLeases(pool={self.pool:x}, used={self.used}/{len(self)}, refused={dict(self.refused)})"

    @property
    def used(self) -> int:
        """The number of slots that are not free."""
        return len(self._slots) - len(self._free)

    def acquire(self) -> Lease | None:
        """Returns a lease on a free slot to write into, or None while there is none."""
        with self._lock:
            if not self._free:
                return None
            index = self._free.pop()
            slot = self._slots[index]
            slot.state = SlotState.WRITING
            slot.generation += 1
            return Lease(self.pool, index, slot.generation)

    def publish(self, lease: Lease, now: float) -> None:
        """Makes the slot of a lease ready. From ``now``, a reader has ``lease_s`` seconds to take it.

        Raises:
            HandleError: the lease is stale or of another pool, or its slot is not being written.
        """
        with self._lock:
            slot = self._find(lease, SlotState.WRITING)
            slot.state = SlotState.READY
            slot.deadline = now + self.lease_s

    def take(self, lease: Lease) -> None:
        """Takes the slot of a lease for reading. The slot belongs to the reader until ``release``.

        Raises:
            HandleError: the lease is stale or of another pool, or its slot is not ready.
        """
        with self._lock:
            self._find(lease, SlotState.READY).state = SlotState.READING

    def release(self, lease: Lease) -> None:
        """Frees the slot of a lease, whether the slot is being written, ready, or being read.

        Raises:
            HandleError: the slot was freed before, or the lease is of another pool.
        """
        with self._lock:
            slot = self._find(lease, SlotState.WRITING, SlotState.READY, SlotState.READING)
            self._set_free(lease.slot, slot)

    def revoke(self, lease: Lease) -> bool:
        """Frees the slot of a lease, unless a reader has the slot or gave it back.

        Returns:
            Whether this call freed the slot.
        """
        with self._lock:
            slot = self._slots[lease.slot]
            is_held = slot.generation == lease.generation and slot.state in (SlotState.WRITING, SlotState.READY)
            if is_held:
                self._set_free(lease.slot, slot)
            return is_held

    def renew_if_read(self, now: float) -> None:
        """Restarts the time of all ready slots if any slot is being read: its reader will take the ready slots next."""
        with self._lock:
            if any(slot.state is SlotState.READING for slot in self._slots):
                for slot in self._slots:
                    if slot.state is SlotState.READY:
                        slot.deadline = now + self.lease_s

    def expire(self, now: float) -> list[Lease]:
        """Frees every ready slot that no reader took in time, and returns their leases. ``now`` is in seconds."""
        with self._lock:
            ended = self._ready(now)
            for lease in ended:
                self._set_free(lease.slot, self._slots[lease.slot])
            return ended

    def ready(self, overdue_at: float = math.inf) -> list[Lease]:
        """Returns the leases of all ready slots: a reader may take them, and none did.

        Args:
            overdue_at: only leases that end by this time, in seconds, are returned.
        """
        with self._lock:
            return self._ready(overdue_at)

    def _ready(self, overdue_at: float) -> list[Lease]:
        return [
            Lease(self.pool, index, slot.generation)
            for index, slot in enumerate(self._slots)
            if slot.state is SlotState.READY and slot.deadline <= overdue_at
        ]

    def _set_free(self, index: int, slot: _Slot) -> None:
        slot.state = SlotState.FREE
        self._free.append(index)

    def _find(self, lease: Lease, *states: SlotState) -> _Slot:
        if lease.pool != self.pool or not 0 <= lease.slot < len(self._slots):
            return self._refuse("foreign", f"{lease} is not in pool {self.pool:x} with {len(self)} slots.")
        slot = self._slots[lease.slot]
        if slot.generation != lease.generation:
            return self._refuse("stale", f"{lease} is stale: slot {lease.slot} is at generation {slot.generation}.")
        if slot.state not in states:
            if slot.state is SlotState.FREE:
                return self._refuse("released", f"{lease} was given back before; each handle is released once.")
            wanted = " or ".join(state.value for state in states)
            return self._refuse("busy", f"{lease} is {slot.state.value}; it would have to be {wanted}.")
        return slot

    def _refuse(self, reason: str, sentence: str) -> _Slot:
        self.refused[reason] += 1
        raise HandleError(reason, sentence)
