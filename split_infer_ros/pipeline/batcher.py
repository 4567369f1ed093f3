"""Which waiting frames make the next batch, and when: pure policy, time is passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Batcher(Generic[T]):
    """Collects frames until a batch is full or its oldest frame has waited long enough.

    Args:
        batch_size: frames a batch.
        timeout_s: a smaller batch is closed once its oldest frame has waited so long.
        keep_latest: when more than a batch waits, the oldest frame of the camera with most frames waiting
            gives way, so that a flooding camera displaces itself alone; otherwise nothing gives way and
            ``full`` asks the senders to wait.
    """

    def __init__(self, batch_size: int, timeout_s: float, keep_latest: bool) -> None:
        self.batch_size = batch_size
        self.timeout_s = timeout_s
        self.keep_latest = keep_latest
        self._waiting: list[tuple[float, Hashable, T]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """True when a whole batch waits."""
        return len(self._waiting) >= self.batch_size

    def add(self, frame: T, source: Hashable, now: float) -> list[T]:
        """A frame arrives; returns those that gave way to it."""
        self._waiting.append((now, source, frame))
        return self._displace()

    def configure(self, batch_size: int, timeout_s: float, keep_latest: bool) -> list[T]:
        """Change the policy; frames go on waiting; returns those that no longer fit."""
        self.batch_size = batch_size
        self.timeout_s = timeout_s
        self.keep_latest = keep_latest
        return self._displace()

    def ready_at(self) -> float | None:
        """When the next batch may be closed: in the past if it is full, None while nothing waits."""
        if not self._waiting:
            return None
        oldest = self._waiting[0][0]
        return oldest if self.full else oldest + self.timeout_s

    def take(self) -> list[T]:
        """Close the batch: the longest waiting frames, at most ``batch_size``."""
        batch, self._waiting = self._waiting[: self.batch_size], self._waiting[self.batch_size :]
        return [frame for _, _, frame in batch]

    def clear(self) -> list[T]:
        """All that wait, which wait no more."""
        left, self._waiting = self._waiting, []
        return [frame for _, _, frame in left]

    def _displace(self) -> list[T]:
        gone: list[T] = []
        while self.keep_latest and len(self._waiting) > self.batch_size:
            held = Counter(source for _, source, _ in self._waiting)
            most = max(held.values())
            index = next(i for i, (_, source, _) in enumerate(self._waiting) if held[source] == most)
            gone.append(self._waiting.pop(index)[2])
        return gone
