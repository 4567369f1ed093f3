"""Every frame is counted once: received = published + dropped (by name) + in flight, at every instant."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import SplitInferError


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """One consistent look at a ledger."""

    received: int = 0
    published: int = 0
    in_flight: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def balanced(self) -> bool:
        """True while nothing was lost without a name."""
        return self.received == self.published + sum(self.dropped.values()) + self.in_flight


class Ticket:
    """The claim of one frame in flight; settled exactly once, as published or as dropped."""

    __slots__ = ("_ledger", "received_at")

    def __init__(self, ledger: Ledger, received_at: float) -> None:
        self._ledger = ledger
        self.received_at = received_at

    def publish(self) -> None:
        """The frame's result went out."""
        self._ledger._settle(self, None)

    def drop(self, reason: DropReason) -> None:
        """The frame ends here, under that name."""
        self._ledger._settle(self, reason)


class Ledger:
    """Counts frames; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received = 0
        self._published = 0
        self._dropped: Counter[DropReason] = Counter()
        self._open: set[Ticket] = set()

    def __repr__(self) -> str:
        return f"Ledger({self.counts()})"

    def receive(self, now: float) -> Ticket:
        """A frame came in at ``now`` (seconds of a steady clock)."""
        ticket = Ticket(self, now)
        with self._lock:
            self._received += 1
            self._open.add(ticket)
        return ticket

    def missed(self, count: int, reason: DropReason) -> None:
        """Frames that were sent but never reached us, received and dropped at once."""
        with self._lock:
            self._received += count
            self._dropped[reason] += count

    def counts(self) -> LedgerCounts:
        """All counts at one instant; frames in flight are counted by their tickets, not by subtraction."""
        with self._lock:
            dropped = {reason.value: count for reason, count in self._dropped.items()}
            return LedgerCounts(self._received, self._published, len(self._open), dropped)

    def _settle(self, ticket: Ticket, reason: DropReason | None) -> None:
        with self._lock:
            if ticket not in self._open:
                raise SplitInferError(f"A frame was settled twice, the second time as {reason or 'published'}.")
            self._open.remove(ticket)
            if reason is None:
                self._published += 1
            else:
                self._dropped[reason] += 1
