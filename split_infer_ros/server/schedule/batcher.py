"""Decides which waiting frames make the next batch, and when. It is pure policy: the time is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Batcher(Generic[T]):
    """Collects frames until a batch is full or its oldest frame has waited long enough.

    Args:
        batch_size: the most frames in a batch.
        timeout_s: how long the oldest frame waits before a smaller batch may be closed.
        keep_latest: what happens when more than one batch waits. If true, the oldest frame of the camera with the most
            waiting frames is displaced, so a flooding camera displaces only its own frames. The newest frame of each
            camera always waits. If false, no frame is displaced, and ``full`` asks the senders to wait.
    """

    def __init__(self, *, batch_size: int, timeout_s: float, keep_latest: bool) -> None:
        self.batch_size = batch_size
        self.timeout_s = timeout_s
        self.keep_latest = keep_latest
        # Arrival and frame, by camera in the order of the cameras' turns. One without frames keeps its turn: otherwise,
        # of cameras that send at the same moments, the first one would be served most.
        self._waiting: dict[Hashable, deque[tuple[float, T]]] = {}
        self._count = 0  # of all waiting frames, which other threads may read

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """True while a whole batch waits."""
        return len(self) >= self.batch_size

    def add(self, frame: T, source: Hashable, now: float) -> list[T]:
        """Adds a frame that arrived from a camera. Returns the frames that it displaces."""
        self._waiting.setdefault(source, deque()).append((now, frame))
        self._count += 1
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
        oldest = min((frames[0][0] for frames in self._waiting.values() if frames), default=None)
        return oldest if oldest is None or self.full else oldest + self.timeout_s

    def take(self) -> list[T]:
        """Closes the batch: removes and returns at most ``batch_size`` frames, by arrival. Cameras take turns."""
        batch: list[tuple[float, T]] = []
        for _ in range(min(self.batch_size, len(self))):
            source = next(source for source, frames in self._waiting.items() if frames)
            frames = self._waiting.pop(source)
            batch.append(frames.popleft())
            self._waiting[source] = frames  # now behind all others
        self._count -= len(batch)
        return [frame for _, frame in sorted(batch, key=lambda each: each[0])]

    def clear(self) -> list[T]:
        """Removes and returns all waiting frames, by arrival."""
        waiting = sorted((each for frames in self._waiting.values() for each in frames), key=lambda each: each[0])
        self._waiting, self._count = {}, 0
        return [frame for _, frame in waiting]

    def _displace(self) -> list[T]:
        displaced: list[T] = []
        while self.keep_latest and len(self) > self.batch_size:
            frames = max(self._waiting.values(), key=lambda each: (len(each), -each[0][0] if each else 0.0))
            if len(frames) == 1:
                break
            displaced.append(frames.popleft()[1])
            self._count -= 1
        return displaced
