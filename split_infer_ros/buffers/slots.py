"""Who may touch which slot of a pool: leases, without the memory itself (no torch, no clock of its own).

A slot goes free -> writing -> ready -> reading -> free. Each use of it has a new generation, so a handle
that outlived its use is recognised and refused. A ready slot whose reader never comes is taken back when
its lease ends.
"""

from __future__ import annotations

import enum
import math
import secrets
import threading
from collections import Counter
from dataclasses import dataclass

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, HandleError


class SlotState(enum.Enum):
    """What is being done with a slot."""

    FREE = "free"
    WRITING = "writing"
    READY = "ready"
    READING = "reading"


@dataclass(frozen=True, slots=True)
class Lease:
    """One use of one slot: this is all that travels.

    Attributes:
        pool: random 63-bit identity of the pool.
        slot: index in the pool.
        generation: how many times the slot had been acquired, this use included.
    """

    pool: int
    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch, as its reader says.

    Attributes:
        published: results went out for so many of its frames, the first ones.
        reason: why not for the others: the value of a ``DropReason``, or any text where another process said it.
        head_start, head_end: when the head's half ran, seconds of this host's steady clock.
        delivered: when the results were out.
    """

    published: int
    reason: str
    head_start: float = math.nan
    head_end: float = math.nan
    delivered: float = math.nan

    def checked(self) -> Outcome:
        """What may be believed of it where another process said so: times that can be, and a reason that heads have."""
        times = self.head_start, self.head_end, self.delivered
        if not (self.head_start <= self.head_end <= self.delivered < math.inf and self.head_start >= 0):
            times = math.nan, math.nan, math.nan
        return Outcome(self.published, DropReason.claimed_by_head(self.reason), *times)


@dataclass(slots=True)
class _Slot:
    state: SlotState = SlotState.FREE
    generation: int = 0
    deadline: float = 0.0


class SlotLeases:
    """A fixed number of slots, handed out and taken back; safe to use from any thread.

    Args:
        slots: how many, at least 1.
        lease_s: a ready slot that nobody takes within so many seconds may be expired.

    Raises:
        ConfigurationError: there would be no slot.
    """

    def __init__(self, slots: int, lease_s: float) -> None:
        if slots < 1:
            raise ConfigurationError(f"A slot pool cannot have {slots} slots; it takes at least 1.")
        self.pool = secrets.randbits(63)
        self._lease_s = lease_s
        self._slots = [_Slot() for _ in range(slots)]
        self._free = list(range(slots))
        self._lock = threading.Lock()
        self.refused: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._slots)

    def __repr__(self) -> str:
        return f"SlotLeases(pool={self.pool:x}, used={self.used}/{len(self)}, refused={dict(self.refused)})"

    @property
    def used(self) -> int:
        """Slots that are not free."""
        return len(self._slots) - len(self._free)

    def acquire(self) -> Lease | None:
        """Take a free slot to write into, or None while there is none."""
        with self._lock:
            if not self._free:
                return None
            index = self._free.pop()
            slot = self._slots[index]
            slot.state = SlotState.WRITING
            slot.generation += 1
            return Lease(self.pool, index, slot.generation)

    def publish(self, lease: Lease, now: float) -> None:
        """What is in the slot may be read; the reader has ``lease_s`` from ``now`` (seconds) to take it."""
        with self._lock:
            slot = self._find(lease, SlotState.WRITING)
            slot.state = SlotState.READY
            slot.deadline = now + self._lease_s

    def take(self, lease: Lease) -> None:
        """Begin to read; until release the slot is the reader's.

        Raises:
            HandleError: the slot has moved on, is already being read, or belongs to another pool.
        """
        with self._lock:
            self._find(lease, SlotState.READY).state = SlotState.READING

    def release(self, lease: Lease) -> None:
        """Give the slot back, from whichever state.

        Raises:
            HandleError: it was given back before, or belongs to another pool.
        """
        with self._lock:
            slot = self._find(lease, SlotState.WRITING, SlotState.READY, SlotState.READING)
            self._set_free(lease.slot, slot)

    def revoke(self, lease: Lease) -> bool:
        """Take the slot back unless somebody reads it or gave it back; returns whether it was taken back."""
        with self._lock:
            slot = self._slots[lease.slot]
            mine = slot.generation == lease.generation and slot.state in (SlotState.WRITING, SlotState.READY)
            if mine:
                self._set_free(lease.slot, slot)
            return mine

    def renew_if_read(self, now: float) -> None:
        """While a slot is being read its reader is there and comes for the others: their leases begin anew."""
        with self._lock:
            if any(slot.state is SlotState.READING for slot in self._slots):
                for slot in self._slots:
                    if slot.state is SlotState.READY:
                        slot.deadline = now + self._lease_s

    def expire(self, now: float) -> list[Lease]:
        """Take back every ready slot whose lease has ended by ``now``; returns the leases that ended."""
        with self._lock:
            ended = self._ready(now)
            for lease in ended:
                self._set_free(lease.slot, self._slots[lease.slot])
            return ended

    def ready(self, overdue_at: float = math.inf) -> list[Lease]:
        """The slots that are published and not taken; given a time, those alone whose lease has ended by then."""
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
            return self._refuse("foreign", f"{lease} is no slot of pool {self.pool:x} with {len(self)} slots.")
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
