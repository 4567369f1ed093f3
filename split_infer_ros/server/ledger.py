"""Counts every frame once: received = published + dropped (by reason) + in flight, at every instant."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import SplitInferError


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """The counts of a ledger at one instant. ``dropped`` maps the value of each drop reason to a count."""

    received: int = 0
    published: int = 0
    in_flight: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def balanced(self) -> bool:
        """True if every received frame is published, dropped or in flight."""
        return self.received == self.published + sum(self.dropped.values()) + self.in_flight


class Ticket:
    """Stands for one frame in flight. It is settled exactly once, as published or as dropped.

    Args:
        ledger: counts the frame.
        received_at: when the frame came in, in seconds of a steady clock.
    """

    __slots__ = ("_ledger", "received_at")

    def __init__(self, ledger: Ledger, received_at: float) -> None:
        self._ledger = ledger
        self.received_at = received_at

    def publish(self) -> None:
        """Settles the frame as published. Raises SplitInferError if it is settled already."""
        self._ledger._settle(self, None)

    def drop(self, reason: DropReason) -> None:
        """Settles the frame as dropped for a reason. Raises SplitInferError if it is settled already."""
        self._ledger._settle(self, reason)


class Ledger:
    """Counts frames. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received = 0
        self._published = 0
        self._dropped: Counter[DropReason] = Counter()
        self._open: set[Ticket] = set()

    def __repr__(self) -> str:
        return f"Ledger({self.counts()})"

    def receive(self, now: float) -> Ticket:
        """Counts a frame that came in at ``now`` (seconds of a steady clock), and returns its ticket."""
        ticket = Ticket(self, now)
        with self._lock:
            self._received += 1
            self._open.add(ticket)
        return ticket

    def missed(self, count: int, reason: DropReason) -> None:
        """Counts frames that were sent but never came in. Each counts as received and as dropped."""
        with self._lock:
            self._received += count
            self._dropped[reason] += count

    def counts(self) -> LedgerCounts:
        """Returns all counts at one instant. ``in_flight`` is the number of open tickets, not a computed difference."""
        with self._lock:
            dropped = {reason.value: count for reason, count in self._dropped.items()}
            return LedgerCounts(
                received=self._received, published=self._published, in_flight=len(self._open), dropped=dropped
            )

    def _settle(self, ticket: Ticket, reason: DropReason | None) -> None:
        with self._lock:
            if ticket not in self._open:
                raise SplitInferError(f"A frame was settled twice, the second time as {reason or 'published'}.")
            self._open.remove(ticket)
            if reason is None:
                self._published += 1
            else:
                self._dropped[reason] += 1
