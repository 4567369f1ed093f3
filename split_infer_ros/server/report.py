"""The report of a running pipeline: counts of frames, and times of its stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from split_infer_ros.server.busy_stages import BusyStages
from split_infer_ros.server.fusion_kind import FusionKind
from split_infer_ros.server.ledger import LedgerCounts
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.timeline import Timeline
from split_infer_ros.telemetry.window import Window
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """What streamed weights took since the partition was made.

    Attributes:
        memory_bytes: memory that holds weights.
        bandwidth: bytes a second while reading.
        stalled_s: seconds for which layers waited for their weights.
    """

    memory_bytes: int
    bandwidth: float
    stalled_s: float

    @classmethod
    def of(cls, streamed: StreamedPartition | None) -> WeightsReport | None:
        """Returns the report of a streamed partition, or None if there is none."""
        if streamed is None:
            return None
        stats = streamed.stats()
        return cls(memory_bytes=streamed.weight_bytes, bandwidth=stats.bandwidth, stalled_s=stats.stalled_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """A model that serves, and the memory that it has.

    Attributes:
        model: name of the running model.
        device: of its backbone.
        engine: that executes its backbone.
        precision: in which its backbone computes.
        split_point: at which it is split.
        settings: with which it runs.
        slots_used: slots in use.
        pool_bytes: memory of all slots.
        staging_bytes: memory of images on their way into the backbone.
        model_bytes: memory of the weights before the split point, on both sides. On a GPU, also that of activations and
            pre-processed images. Under ``managed`` and ``pinned``, this is what torch's allocator has taken. Under
            ``device``, activations count only in recorded graphs. Others lie in memory that all models share.
        memory: the memory policy of the model, or the kind of memory on a CPU.
        memory_reason: why they have it.
        weights: of a backbone whose weights are streamed; otherwise None.
        failure: why the backbone lost a batch; empty again once a later batch passed.
        left_out: number of impossible detections by name. Empty if they are not counted where the report is made.
    """

    model: str
    device: str
    engine: str
    precision: str
    split_point: str
    settings: StageSettings
    slots_used: int
    pool_bytes: int
    staging_bytes: int
    model_bytes: int
    memory: str
    memory_reason: str
    weights: WeightsReport | None = None
    failure: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport(ModelReport):
    """Counts since the start, and times over the last seconds. Times are NaN while there are no samples.

    Attributes:
        time: of the report, seconds of the steady clock.
        counts: of the ledger.
        batches: finished by heads so far.
        merged_batches: those of them that had several frames.
        fused_batches: those of them whose execution computed batches of other models as well.
        stacked_batches: those of ``fused_batches`` that were computed with the others by one network.
        backbone_busy_s, head_busy_s: seconds in which each stage worked on at least one batch; see ``BusyStages``.
        latency_p50_s, latency_p99_s: from receiving a frame until its detections are published.
        age_p50_s, age_p99_s: from the image's own stamp until its detections are published.
        queueing_mean_s, queueing_p99_s: from receiving a frame until its batch is closed and its execution begins.
        preprocess_s, backbone_s, head_s: median time of a batch in each stage.
        hop_s: median time from publishing the handle until the head starts. With a head on another host, it includes
            the way back.
        postprocess_s: median time of a batch in post-processing, including publishing.
        batch_fill: mean number of frames in a batch.
    """

    time: float
    counts: LedgerCounts
    batches: int
    merged_batches: int
    fused_batches: int
    stacked_batches: int
    backbone_busy_s: float
    head_busy_s: float
    latency_p50_s: float
    latency_p99_s: float
    age_p50_s: float
    age_p99_s: float
    queueing_mean_s: float
    queueing_p99_s: float
    preprocess_s: float
    backbone_s: float
    hop_s: float
    head_s: float
    postprocess_s: float
    batch_fill: float


class PipelineMeters:
    """Collects times batch by batch. The ledger counts the frames.

    Attributes:
        latency: of frames.
        age: of frames whose images have a stamp, when their detections are published.
        queueing: delays of frames, from their receipt to the start of their execution.
        busy: counts the seconds in which each stage has a batch.
        batches: finished by heads so far.
        merged: how many of them had several frames.
        fusions: how many of them were executed in each way.
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
            timeline: of the batch.
            frames: how many the batch had.
            fusion: how it was executed.
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
        """Returns the report at ``now``, in seconds of the steady clock."""
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


def _median(window: Window, now: float) -> float:
    (median,) = window.percentiles(50, now=now)
    return median
