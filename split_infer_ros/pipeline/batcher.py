"""Decides which waiting frames make the next batch, and when. It is pure policy: the time is passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Batcher(Generic[T]):
    """Collects frames until a batch is full or its oldest frame has waited long enough.

    Args:
        batch_size: the most frames in a batch.
        timeout_s: how long the oldest frame waits before a smaller batch may be closed.
        keep_latest: what happens when more than one batch waits. If true, the oldest frame of the camera with the most
            waiting frames is displaced, so a flooding camera displaces only its own frames. If false, no frame is
            displaced, and ``full`` asks the senders to wait.
    """

    def __init__(self, *, batch_size: int, timeout_s: float, keep_latest: bool) -> None:
        self.batch_size = batch_size
        self.timeout_s = timeout_s
        self.keep_latest = keep_latest
        self._waiting: list[tuple[float, Hashable, T]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """True while a whole batch waits."""
        return len(self._waiting) >= self.batch_size

    def add(self, frame: T, source: Hashable, now: float) -> list[T]:
        """Adds a frame that arrived from a camera. Returns the frames that it displaces."""
        self._waiting.append((now, source, frame))
        return self._displace()

    def configure(self, *, batch_size: int, timeout_s: float, keep_latest: bool) -> list[T]:
        """Changes the policy for all frames, also those that wait. Returns the frames that are displaced."""
        self.batch_size = batch_size
        self.timeout_s = timeout_s
        self.keep_latest = keep_latest
        return self._displace()

    def ready_at(self) -> float | None:
        """Returns when the next batch may be closed. A full batch may be since its oldest frame arrived.

        None while no frame waits.
        """
        if not self._waiting:
            return None
        oldest = self._waiting[0][0]
        return oldest if self.full else oldest + self.timeout_s

    def take(self) -> list[T]:
        """Closes the batch: removes and returns the frames that waited longest, at most ``batch_size``."""
        batch, self._waiting = self._waiting[: self.batch_size], self._waiting[self.batch_size :]
        return [frame for _, _, frame in batch]

    def clear(self) -> list[T]:
        """Removes and returns all waiting frames."""
        waiting, self._waiting = self._waiting, []
        return [frame for _, _, frame in waiting]

    def _displace(self) -> list[T]:
        displaced: list[T] = []
        while self.keep_latest and len(self._waiting) > self.batch_size:
            counts = Counter(source for _, source, _ in self._waiting)
            max_count = max(counts.values())
            index = next(i for i, (_, source, _) in enumerate(self._waiting) if counts[source] == max_count)
            _, _, frame = self._waiting.pop(index)
            displaced.append(frame)
        return displaced
