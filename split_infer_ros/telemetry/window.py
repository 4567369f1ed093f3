"""Percentiles and means of the samples of the last few seconds."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np


class Window:
    """Keeps recent samples. Any thread may use it.

    Args:
        seconds: how long a sample counts.
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
        """Returns the percentile of each rank (0 to 100) over the window; NaN without samples."""
        values = self._recent(now)
        if not values:
            return tuple(float("nan") for _ in ranks)
        return tuple(float(value) for value in np.percentile(values, ranks))

    def mean(self, *, now: float) -> float:
        """Returns the mean over the window; NaN without samples."""
        values = self._recent(now)
        return sum(values) / len(values) if values else float("nan")

    def _recent(self, now: float) -> list[float]:
        with self._lock:
            return [value for time, value in self._samples if time > now - self.seconds]
