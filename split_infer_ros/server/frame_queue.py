"""The frames that wait for their batch, and the senders that wait until there is room for more."""

from __future__ import annotations

import threading

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.server.frame import Frame
from split_infer_ros.server.schedule.batcher import Batcher
from split_infer_ros.server.settings import DropPolicy, StageSettings


class FrameQueue:
    """Holds frames for the batcher, and counts those that it displaces; callers hold the lock but where it is said.

    Args:
        settings: the first ones, of batches.
        changed: guards the queue; notified when a frame comes, and when senders need wait no longer.

    Attributes:
        is_open: frames are taken. While it is false, nobody waits for room.
    """

    def __init__(self, settings: StageSettings, changed: threading.Condition) -> None:
        self._changed = changed
        self._batcher: Batcher[Frame] = Batcher(
            batch_size=settings.batch_size,
            timeout_s=settings.batch_timeout_s,
            keep_latest=settings.drop_policy is DropPolicy.LATEST,
        )
        self._was_full = False
        self.is_open = False

    def __len__(self) -> int:
        return len(self._batcher)

    @property
    def full(self) -> bool:
        """True while senders are asked to wait (drop_policy ``block``); read without the lock, too."""
        return not self._batcher.keep_latest and self._batcher.full

    def configure(self, settings: StageSettings) -> None:
        """Changes the settings of batches, also for frames that wait."""
        displaced = self._batcher.configure(
            batch_size=settings.batch_size,
            timeout_s=settings.batch_timeout_s,
            keep_latest=settings.drop_policy is DropPolicy.LATEST,
        )
        for frame in displaced:
            frame.drop(DropReason.OVERRUN)
        self._changed.notify_all()

    def add(self, frame: Frame, now: float) -> None:
        """Adds a frame; older ones that it displaces are dropped."""
        for displaced in self._batcher.add(frame, frame.origin.source, now):
            displaced.drop(DropReason.OVERRUN)
        self._was_full = self._was_full or self.full
        self._changed.notify_all()

    def due_at(self, now: float) -> float | None:
        """Returns when the next batch is due: at once if nothing more will come. None while no frame waits."""
        ready_at = self._batcher.ready_at()
        return ready_at if ready_at is None or self.is_open else now

    def take(self) -> list[Frame]:
        """Closes the batch: removes and returns its frames."""
        return self._batcher.take()

    def clear(self, reason: DropReason) -> None:
        """Drops all frames that wait."""
        for frame in self._batcher.clear():
            frame.drop(reason)

    def wait_for_room(self, timeout_s: float) -> bool:
        """Waits while ``full``, on a thread of the sender and without the lock; returns whether there is room."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.full or not self.is_open, timeout_s)

    def tell_senders(self) -> None:
        """Wakes senders if ``full`` ended; called without the lock."""
        with self._changed:
            over = self._was_full and not self.full
            self._was_full = self.full
            if over:
                self._changed.notify_all()
