"""The account of a stream of frames: what became of them, how long it took, and how busy the stages were."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

from split_infer_ros.buffers.slots import Lease
from split_infer_ros.server.fusion_kind import FusionKind
from split_infer_ros.server.ledger import Ledger, LedgerCounts
from split_infer_ros.server.report import ModelReport, PipelineReport
from split_infer_ros.server.timeline import Timeline
from split_infer_ros.telemetry.meters import BusyTime, Window


class BusyStages:
    """Counts the seconds in which the backbone stage and the head stage have at least one batch. Any thread may use it.

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
        """Notes that the backbone is done with a batch: the batch was handed over to a head, or failed."""
        # On a GPU a batch is computed from its launch, or from the end of the batch before it, until its fence.
        self._backbone.end(batch, now, (times.closed, times.preprocessed), (times.backbone_start, now))

    def finish(self, batch: Lease, times: Timeline, now: float) -> None:
        """Notes that a head returned a batch, and when the head worked on it."""
        self._head.end(batch, now, (times.head_start, times.delivered))

    def lose(self, batch: Lease, now: float) -> None:
        """Notes that no head will return a batch."""
        self._head.end(batch, now)

    def backbone_s(self, now: float) -> float:
        """Returns the seconds in which at least one batch was pre-processed, computed or handed over to a head."""
        return self._backbone.seconds(now)

    def head_s(self, now: float) -> float:
        """Returns the seconds in which at least one batch was in the head partition, decoded or published."""
        return self._head.seconds(now)


class PipelineMeters:
    """Collects the times of batches and of their frames. The frames themselves are counted by a ``Ledger``.

    Attributes:
        latency: recent seconds from the receipt of a frame until its detections are published.
        age: recent seconds from an image's own stamp until its detections are published, for images with a stamp.
        queueing: recent seconds from the receipt of a frame until its batch is closed and executed.
        busy: counts the seconds in which each stage has a batch.
        batches: number of batches that heads have finished so far.
        merged: how many of ``batches`` had several frames.
        fusions: the number of ``batches`` by how they were executed: alone, or together with batches of other models.
    """

    def __init__(self) -> None:
        self.latency = Window()
        self.age = Window()
        self.queueing = Window()
        self.busy = BusyStages()
        self._stages = {name: Window() for name in Timeline().slices()}
        self._hop = Window()
        self._fill = Window()
        self.batches = 0
        self.merged = 0
        self.fusions: Counter[FusionKind] = Counter()

    def batch_done(self, timeline: Timeline, *, frames: int, fusion: FusionKind, now: float) -> None:
        """Adds the times of a batch that a head has finished.

        Args:
            timeline: the timeline of the batch.
            frames: number of frames in the batch.
            fusion: how the batch was executed.
            now: seconds of the steady clock.
        """
        self.batches += 1
        self.merged += frames > 1
        self.fusions[fusion] += 1
        for name, (start, end) in timeline.slices().items():
            self._stages[name].add(end - start, now)
        self._hop.add(timeline.head_start - timeline.published, now)
        self._fill.add(frames, now)

    def report(self, now: float, counts: LedgerCounts, model: ModelReport) -> PipelineReport:
        """Returns a report of all counts and times.

        Args:
            now: the time of the report, in seconds of the steady clock.
            counts: the counts of the ledger.
            model: the report on the model.
        """
        latency_p50_s, latency_p99_s = self.latency.percentiles(50, 99, now=now)
        age_p50_s, age_p99_s = self.age.percentiles(50, 99, now=now)
        (queueing_p99_s,) = self.queueing.percentiles(99, now=now)
        stacked = self.fusions[FusionKind.STACKED]
        of_stages: dict[str, Any] = {f"{name}_s": _median(window, now) for name, window in self._stages.items()}
        return PipelineReport(
            **{each.name: getattr(model, each.name) for each in fields(model)},
            **of_stages,
            time=now,
            counts=counts,
            batches=self.batches,
            merged_batches=self.merged,
            fused_batches=self.fusions[FusionKind.FUSED] + stacked,
            stacked_batches=stacked,
            backbone_busy_s=self.busy.backbone_s(now),
            head_busy_s=self.busy.head_s(now),
            latency_p50_s=latency_p50_s,
            latency_p99_s=latency_p99_s,
            age_p50_s=age_p50_s,
            age_p99_s=age_p99_s,
            queueing_mean_s=self.queueing.mean(now=now),
            queueing_p99_s=queueing_p99_s,
            hop_s=_median(self._hop, now),
            batch_fill=self._fill.mean(now=now),
        )


@dataclass(slots=True, eq=False)
class Account:
    """Counts and times of the frames of one pipeline or of one tenant.

    Attributes:
        ledger: counts the frames.
        meters: collects the times.
    """

    ledger: Ledger = field(default_factory=Ledger)
    meters: PipelineMeters = field(default_factory=PipelineMeters)


def _median(window: Window, now: float) -> float:
    (median,) = window.percentiles(50, now=now)
    return median
