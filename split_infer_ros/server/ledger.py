"""Counts every frame once: received = published + dropped (for a reason) + in flight, at every instant."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import SplitInferError


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """The counts of a ledger at one instant.

    Attributes:
        received, published, in_flight: numbers of frames.
        dropped: the number of dropped frames by the value of their drop reason.
    """

    received: int = 0
    published: int = 0
    in_flight: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def balanced(self) -> bool:
        """True if every received frame is published, dropped or in flight."""
        return self.received == self.published + sum(self.dropped.values()) + self.in_flight


class Ticket:
    """Stands for one frame in flight. It is settled once, as published or as dropped. Until then it is open.

    Args:
        ledger: the ledger that counts the frame.
        received_at: when the frame came in, in seconds of the steady clock.
    """

    __slots__ = ("_ledger", "received_at")

    def __init__(self, ledger: Ledger, received_at: float) -> None:
        self._ledger = ledger
        self.received_at = received_at

    def publish(self) -> None:
        """Counts the frame as published. Raises SplitInferError if it is published or dropped already."""
        self._ledger._settle(self, None)

    def drop(self, reason: DropReason) -> None:
        """Counts the frame as dropped for a reason. Raises SplitInferError if it is published or dropped already."""
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
        """Counts a frame that came in at ``now`` (seconds of the steady clock). Returns a ticket for the frame."""
        ticket = Ticket(self, now)
        with self._lock:
            self._received += 1
            self._open.add(ticket)
        return ticket

    def missed(self, count: int, reason: DropReason) -> None:
        """Counts frames that a camera sent and that never arrived. Each counts as received and as dropped."""
        with self._lock:
            self._received += count
            self._dropped[reason] += count

    def counts(self) -> LedgerCounts:
        """Returns the numbers of received, published and dropped frames and of frames in flight, all at one instant.

        The number in flight is counted, and not computed from the others: it is the number of tickets whose frame is
        neither published nor dropped. So ``LedgerCounts.balanced`` can detect a frame that was lost.
        """
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
