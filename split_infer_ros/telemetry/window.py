"""Samples of the last few seconds and their percentiles."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np


class Window:
    """Keeps samples for a while; safe to use from any thread.

    Args:
        seconds: how long a sample counts.
        most: at most so many samples are kept, the newest.
    """

    def __init__(self, seconds: float = 10.0, most: int = 10_000) -> None:
        self.seconds = seconds
        self._samples: deque[tuple[float, float]] = deque(maxlen=most)
        self._lock = threading.Lock()

    def add(self, value: float, now: float) -> None:
        """A sample, taken at ``now`` (seconds)."""
        with self._lock:
            self._samples.append((now, value))
            while self._samples[0][0] <= now - self.seconds:
                self._samples.popleft()

    def percentiles(self, *ranks: float, now: float) -> tuple[float, ...]:
        """The value at each rank (0..100) among samples not older than the window; NaN without samples."""
        values = self._recent(now)
        if not values:
            return tuple(float("nan") for _ in ranks)
        return tuple(float(value) for value in np.percentile(values, ranks))

    def mean(self, *, now: float) -> float:
        """The mean of samples not older than the window; NaN without samples."""
        values = self._recent(now)
        return sum(values) / len(values) if values else float("nan")

    def _recent(self, now: float) -> list[float]:
        with self._lock:
            return [value for time, value in self._samples if time > now - self.seconds]
