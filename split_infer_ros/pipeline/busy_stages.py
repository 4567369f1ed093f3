"""Counts the seconds in which the backbone and the head are busy."""

from __future__ import annotations

from split_infer_ros.buffers.slots import Lease
from split_infer_ros.pipeline.timeline import Timeline
from split_infer_ros.telemetry.busy import BusyTime


class BusyStages:
    """Follows batches through both stages; safe to use from any thread.

    All times are seconds of the backbone's steady clock. A head in another process or on another host tells its times
    when it gives the batch back. Until then the batch counts as with the head.
    """

    def __init__(self) -> None:
        self._backbone = BusyTime()
        self._head = BusyTime()

    def enter(self, batch: Lease, now: float) -> None:
        """Notes that pre-processing of a batch begins."""
        self._backbone.begin(batch, now)

    def publish(self, batch: Lease, now: float) -> None:
        """Notes that a head can take the batch."""
        self._head.begin(batch, now)

    def leave(self, batch: Lease, times: Timeline, now: float) -> None:
        """Notes that the backbone is done with a batch: it handed the batch over, or failed."""
        # On a GPU a batch is computed from its launch, or from the end of the batch before it, until its fence.
        self._backbone.end(batch, now, (times.closed, times.preprocessed), (times.backbone_start, now))

    def finish(self, batch: Lease, times: Timeline, now: float) -> None:
        """Notes that a head gave a batch back, and when the head was at it."""
        self._head.end(batch, now, (times.head_start, times.delivered))

    def lose(self, batch: Lease, now: float) -> None:
        """Notes that no head gives a batch back."""
        self._head.end(batch, now)

    def backbone_s(self, now: float) -> float:
        """Seconds in which at least one batch was pre-processed, computed or handed over."""
        return self._backbone.seconds(now)

    def head_s(self, now: float) -> float:
        """Seconds in which at least one batch was in the head's partition, decoded or published."""
        return self._head.seconds(now)
