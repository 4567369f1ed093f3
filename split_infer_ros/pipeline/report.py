"""One look at a running pipeline: what was counted and how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from split_infer_ros.pipeline.frame import Timeline
from split_infer_ros.pipeline.ledger import LedgerCounts
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.telemetry.window import Window


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """Counts since the start; times over the last seconds, NaN while there are none.

    Attributes:
        time: of the report, seconds of the steady clock.
        counts: the ledger's.
        batches: published so far.
        model, device, split_point, settings: what is running.
        ring_used, ring_bytes: slots in use, and bytes of all slots.
        memory: what the ring lies in.
        latency_p50_s, latency_p99_s: of a frame, from receipt to the publishing of its detections.
        backbone_s, hop_s, head_s: medians of a batch: backbone with pre-processing, hand-over (to a head on another
            host: both ways), head with post-processing and publishing.
        batch_fill: frames a batch, mean.
    """

    time: float
    counts: LedgerCounts
    batches: int
    model: str
    device: str
    split_point: str
    settings: StageSettings
    ring_used: int
    ring_bytes: int
    memory: str
    latency_p50_s: float
    latency_p99_s: float
    backbone_s: float
    hop_s: float
    head_s: float
    batch_fill: float


class PipelineMeters:
    """Collects times batch by batch; the counts are the ledger's affair."""

    def __init__(self) -> None:
        self.latency = Window()
        self._backbone = Window()
        self._hop = Window()
        self._head = Window()
        self._fill = Window()
        self._batches = 0

    def batch_done(self, timeline: Timeline, frames: int, now: float) -> None:
        """A head has finished with a batch."""
        self._batches += 1
        self._backbone.add(timeline.backbone_end - timeline.closed, now)
        self._hop.add(timeline.head_start - timeline.published, now)
        self._head.add(timeline.head_end - timeline.head_start, now)
        self._fill.add(frames, now)

    def report(
        self,
        now: float,
        *,
        counts: LedgerCounts,
        model: str,
        device: str,
        split_point: str,
        settings: StageSettings,
        ring_used: int,
        ring_bytes: int,
        memory: str,
    ) -> PipelineReport:
        """All of it at ``now``."""
        p50, p99 = self.latency.percentiles(50, 99, now=now)
        return PipelineReport(
            time=now,
            counts=counts,
            batches=self._batches,
            model=model,
            device=device,
            split_point=split_point,
            settings=settings,
            ring_used=ring_used,
            ring_bytes=ring_bytes,
            memory=memory,
            latency_p50_s=p50,
            latency_p99_s=p99,
            backbone_s=self._backbone.percentiles(50, now=now)[0],
            hop_s=self._hop.percentiles(50, now=now)[0],
            head_s=self._head.percentiles(50, now=now)[0],
            batch_fill=self._fill.mean(now=now),
        )
