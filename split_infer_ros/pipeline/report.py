"""One look at a running pipeline: what was counted and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from split_infer_ros.pipeline.busy_stages import BusyStages
from split_infer_ros.pipeline.ledger import LedgerCounts
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.pipeline.timeline import Timeline
from split_infer_ros.telemetry.window import Window
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """Weights that are read layer by layer, since the partition was made.

    Attributes:
        memory_bytes: that hold weights.
        bandwidth: bytes a second while reading.
        stalled_s: for which layers waited for their weights.
    """

    memory_bytes: int
    bandwidth: float
    stalled_s: float

    @classmethod
    def of(cls, stream: StreamedPartition | None) -> WeightsReport | None:
        """Of a partition, if it is streamed."""
        if stream is None:
            return None
        stats = stream.stats()
        return cls(stream.weight_bytes, stats.bandwidth, stats.stalled_s)


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """Counts since the start; times over the last seconds, NaN while there are none.

    Attributes:
        time: of the report, seconds of the steady clock.
        counts: the ledger's.
        batches: published so far.
        backbone_busy_s, head_busy_s: in which each stage was at one batch at least, see ``BusyStages``.
        model, device, split_point, settings: what is running.
        slots_used, pool_bytes: slots in use, and bytes of all slots.
        staging_bytes: of images on their way into the backbone.
        memory, memory_reason: what features and staging lie in, and why.
        latency_p50_s, latency_p99_s: of a frame, from receipt to the publishing of its detections.
        preprocess_s, backbone_s, hop_s, head_s, postprocess_s: medians of a batch's time in each stage, and
            between publication of the handle and the head's start (of a head on another host: both ways);
            post-processing includes publication.
        batch_fill: frames a batch, mean.
        weights: of a backbone whose weights are read while it runs.
        failure: why a batch was lost in the backbone; empty again once one passed it.
        left_out: detections that cannot be, by name, as far as they are counted where the report is made.
    """

    time: float
    counts: LedgerCounts
    batches: int
    backbone_busy_s: float
    head_busy_s: float
    model: str
    device: str
    split_point: str
    settings: StageSettings
    slots_used: int
    pool_bytes: int
    staging_bytes: int
    memory: str
    memory_reason: str
    latency_p50_s: float
    latency_p99_s: float
    preprocess_s: float
    backbone_s: float
    hop_s: float
    head_s: float
    postprocess_s: float
    batch_fill: float
    weights: WeightsReport | None = None
    failure: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)


class PipelineMeters:
    """Collects times batch by batch; the ledger counts the frames.

    Attributes:
        latency: of frames.
        busy: told of each batch on its way.
        batches: that heads have finished with.
    """

    def __init__(self) -> None:
        self.latency = Window()
        self.busy = BusyStages()
        self._stages = {name: Window() for name in Timeline().slices()}
        self._hop = Window()
        self._fill = Window()
        self.batches = 0

    def batch_done(self, timeline: Timeline, frames: int, now: float) -> None:
        """A head has finished with a batch."""
        self.batches += 1
        for name, (start, end) in timeline.slices().items():
            self._stages[name].add(end - start, now)
        self._hop.add(timeline.head_start - timeline.published, now)
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
        slots_used: int,
        pool_bytes: int,
        staging_bytes: int,
        memory: str,
        memory_reason: str,
        weights: WeightsReport | None = None,
        failure: str = "",
        left_out: Mapping[str, int] | None = None,
    ) -> PipelineReport:
        """All of it at ``now``."""
        p50, p99 = self.latency.percentiles(50, 99, now=now)
        return PipelineReport(
            time=now,
            counts=counts,
            batches=self.batches,
            backbone_busy_s=self.busy.backbone_s(now),
            head_busy_s=self.busy.head_s(now),
            model=model,
            device=device,
            split_point=split_point,
            settings=settings,
            slots_used=slots_used,
            pool_bytes=pool_bytes,
            staging_bytes=staging_bytes,
            memory=memory,
            memory_reason=memory_reason,
            weights=weights,
            failure=failure,
            latency_p50_s=p50,
            latency_p99_s=p99,
            hop_s=self._hop.percentiles(50, now=now)[0],
            **{f"{name}_s": window.percentiles(50, now=now)[0] for name, window in self._stages.items()},
            batch_fill=self._fill.mean(now=now),
            left_out=left_out or {},
        )
