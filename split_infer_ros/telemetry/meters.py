"""Meters that know nothing of what they measure: recent samples, and seconds in which something was busy."""

from __future__ import annotations

import bisect
import math
import threading
from collections import deque
from collections.abc import Hashable

import numpy as np

MAX_INTERVALS = 1000  # the most intervals that ``BusyTime`` keeps between two calls of ``seconds``


class Window:
    """Keeps recent samples. Any thread may use it.

    Args:
        seconds: the length of the window. Older samples do not count in results.
        max_samples: the most samples that are kept. Older samples are dropped.
    """

    def __init__(self, seconds: float = 10.0, max_samples: int = 10_000) -> None:
        self.seconds = seconds
        self._samples: deque[tuple[float, float]] = deque(maxlen=max_samples)
        self._lock = threading.Lock()

    def add(self, value: float, now: float) -> None:
        """Adds a sample that was taken at ``now`` (seconds)."""
        with self._lock:
            self._samples.append((now, value))
            while self._samples[0][0] <= now - self.seconds:
                self._samples.popleft()

    @property
    def num_samples(self) -> int:
        """How many samples are kept."""
        return len(self._samples)

    def percentiles(self, *ranks: float, now: float) -> tuple[float, ...]:
        """Returns the percentile of each rank (0 to 100) over the window that ends at ``now``; NaN without samples."""
        values = self._recent(now)
        if not values:
            return tuple(float("nan") for _ in ranks)
        return tuple(float(value) for value in np.percentile(values, ranks))

    def mean(self, *, now: float) -> float:
        """Returns the mean over the window that ends at ``now``; NaN without samples."""
        values = self._recent(now)
        return sum(values) / len(values) if values else float("nan")

    def _recent(self, now: float) -> list[float]:
        with self._lock:
            return [value for time, value in self._samples if time > now - self.seconds]


class BusyTime:
    """Counts the seconds in which at least one piece of work was under way. Any thread may use it.

    If pieces of work overlap, their common time counts once. Work that has not ended counts from its beginning.
    Between two calls of ``seconds``, the count never grows by more than the time that passed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Hashable, float] = {}  # when each piece of work that is not over began
        self._intervals: list[tuple[float, float]] = []  # disjoint and sorted: busy times that may still grow
        self._settled_s = 0.0  # the sum of busy times that cannot change any more
        self._earliest = -math.inf  # no interval can begin before this time, because earlier time has been reported
        self._reported_s = 0.0

    def begin(self, work: Hashable, now: float) -> None:
        """Notes that a piece of work may be under way from now on. ``end`` later says when it really was.

        Args:
            work: a key for this piece of work.
            now: seconds of a steady clock.
        """
        with self._lock:
            self._open[work] = max(now, self._earliest)

    def end(self, work: Hashable, now: float, *intervals: tuple[float, float]) -> None:
        """Notes that a piece of work is over; does nothing if the work did not begin.

        Args:
            work: the key that ``begin`` was given.
            now: seconds of the clock that ``begin`` uses.
            intervals: start and end of each time in which the work was under way. Without intervals, it was under way
                from ``begin`` until now. Times before ``begin`` or after now are ignored, because another process may
                have reported them wrongly.
        """
        with self._lock:
            begun = self._open.pop(work, None)
            if begun is None:
                return
            for start, end in intervals or [(begun, now)]:
                self._add(max(start, begun), min(end, now))
            if len(self._intervals) > MAX_INTERVALS:  # true only if nobody calls ``seconds``
                first_open = min(self._open.values(), default=math.inf)
                self._settle_until(first_open)

    @property
    def num_intervals(self) -> int:
        """How many busy times are stored one by one, because work that has not ended may still touch them."""
        return len(self._intervals)

    def seconds(self, now: float) -> float:
        """Returns the busy seconds until ``now``, which may lie a little in the past. The result never falls."""
        with self._lock:
            first_open = min(self._open.values(), default=math.inf)
            closed_until = min(first_open, now)
            closed_s = sum(max(0.0, min(end, closed_until) - start) for start, end in self._intervals)
            open_s = max(0.0, now - first_open)
            self._reported_s = max(self._reported_s, self._settled_s + closed_s + open_s)
            self._earliest = max(self._earliest, now)
            self._settle_until(closed_until)
            return self._reported_s

    def _add(self, start: float, end: float) -> None:
        """Adds an interval and merges it with the intervals that it touches."""
        if not start < end:
            return
        if not self._intervals or self._intervals[-1][1] < start:  # usual: it is later than all others
            self._intervals.append((start, end))
            return
        first = bisect.bisect_left(self._intervals, start, key=lambda interval: interval[1])
        last = bisect.bisect_right(self._intervals, end, key=lambda interval: interval[0])
        touched = self._intervals[first:last]
        if touched:
            start, end = min(start, touched[0][0]), max(end, touched[-1][1])
        self._intervals[first:last] = [(start, end)]

    def _settle_until(self, time: float) -> None:
        """Adds up the intervals that end by ``time`` and forgets them. No later interval can touch them."""
        count = bisect.bisect_right(self._intervals, time, key=lambda interval: interval[1])
        if count:
            self._settled_s += sum(end - start for start, end in self._intervals[:count])
            self._earliest = max(self._earliest, self._intervals[count - 1][1])
            del self._intervals[:count]
