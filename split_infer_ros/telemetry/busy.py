"""Counts the seconds in which something was busy."""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Hashable

MOST_TIMES = 1000  # that are kept apart between two looks


class BusyTime:
    """Counts the seconds in which at least one piece of work was under way; safe to use from any thread.

    Pieces may overlap: their common time counts once. A piece that is not over yet counts from its beginning. So
    between two looks the count never grows by more than the seconds that passed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Hashable, float] = {}  # when each piece that is not over began
        self._busy: list[tuple[float, float]] = []  # apart from each other and in order; since the last look
        self._settled_s = 0.0  # of times that nothing touches any more
        self._floor = -math.inf  # nothing begins earlier: the time before was told
        self._told_s = 0.0

    def begin(self, work: Hashable, now: float) -> None:
        """Notes that a piece of work may begin at ``now`` (seconds of a steady clock)."""
        with self._lock:
            self._open[work] = max(now, self._floor)

    def end(self, work: Hashable, now: float, *times: tuple[float, float]) -> None:
        """Notes that a piece of work is over; does nothing for work that did not begin.

        Args:
            work: as it was named at its beginning.
            now: seconds, as above.
            times: start and end of each time in which it was under way; from its beginning until now unless given.
                What lies outside of that is left out, since another process may tell these times.
        """
        with self._lock:
            begun = self._open.pop(work, None)
            if begun is None:
                return
            for start, end in times or [(begun, now)]:
                self._add(max(start, begun), min(end, now))
            if len(self._busy) > MOST_TIMES:  # nobody looks
                since = min(self._open.values(), default=math.inf)
                self._settle(bisect.bisect_right(self._busy, since, key=lambda time: time[1]))

    def seconds(self, now: float) -> float:
        """The count at ``now``, which may have passed a while ago; it never falls."""
        with self._lock:
            since = min(self._open.values(), default=math.inf)
            known = min(since, now)
            before = sum(max(0.0, min(end, known) - start) for start, end in self._busy)
            self._told_s = max(self._told_s, self._settled_s + before + max(0.0, now - since))
            self._floor = max(self._floor, now)
            self._settle(bisect.bisect_right(self._busy, known, key=lambda time: time[1]))
            return self._told_s

    def _add(self, start: float, end: float) -> None:
        """Merges a time with those that it touches."""
        if not start < end:
            return
        first = bisect.bisect_left(self._busy, start, key=lambda time: time[1])
        last = bisect.bisect_right(self._busy, end, key=lambda time: time[0])
        touched = self._busy[first:last]
        if touched:
            start, end = min(start, touched[0][0]), max(end, touched[-1][1])
        self._busy[first:last] = [(start, end)]

    def _settle(self, count: int) -> None:
        """Adds up the first times, which nothing may touch any more."""
        if count:
            self._settled_s += sum(end - start for start, end in self._busy[:count])
            self._floor = max(self._floor, self._busy[count - 1][1])
            del self._busy[:count]
