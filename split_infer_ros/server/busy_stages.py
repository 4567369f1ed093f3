"""Counts the seconds in which the backbone and the head are busy."""

from __future__ import annotations

from split_infer_ros.buffers.slots import Lease
from split_infer_ros.server.timeline import Timeline
from split_infer_ros.telemetry.busy import BusyTime


class BusyStages:
    """Follows batches through both stages. Any thread may use it.

    All times are seconds of the backbone's steady clock. A head in another process or on another host reports its times
    when it returns the batch. Until then the head counts as busy with the batch.
    """

    def __init__(self) -> None:
        self._backbone = BusyTime()
        self._head = BusyTime()

    def enter(self, batch: Lease, now: float) -> None:
        """Notes that pre-processing of a batch begins."""
        self._backbone.begin(batch, now)

    def publish(self, batch: Lease, now: float) -> None:
        """Notes that a head can read the batch."""
        self._head.begin(batch, now)

    def leave(self, batch: Lease, times: Timeline, now: float) -> None:
        """Notes that the backbone is done with a batch: the batch was handed over, or failed."""
        # On a GPU a batch is computed from its launch, or from the end of the batch before it, until its fence.
        self._backbone.end(batch, now, (times.closed, times.preprocessed), (times.backbone_start, now))

    def finish(self, batch: Lease, times: Timeline, now: float) -> None:
        """Notes that a head returned a batch, and when the head worked on it."""
        self._head.end(batch, now, (times.head_start, times.delivered))

    def lose(self, batch: Lease, now: float) -> None:
        """Notes that no head will return a batch."""
        self._head.end(batch, now)

    def backbone_s(self, now: float) -> float:
        """Returns the seconds in which at least one batch was pre-processed, computed or handed over."""
        return self._backbone.seconds(now)

    def head_s(self, now: float) -> float:
        """Returns the seconds in which at least one batch was in the head partition, decoded or published."""
        return self._head.seconds(now)
