"""The report of a running pipeline: counts of frames, times of its stages, and its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from split_infer_ros.server.ledger import LedgerCounts
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """What weight streaming has cost since the partition was made.

    Attributes:
        memory_bytes: bytes of the memory that holds weights.
        bandwidth: bytes a second while weights are read.
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
        device: the device that runs the backbone.
        engine: the engine that executes the backbone.
        precision: the precision in which the backbone computes.
        split_point: where the model is split.
        settings: the settings with which the model runs.
        slots_used: number of slots in use.
        pool_bytes: memory of all slots.
        staging_bytes: memory of images on their way into the backbone.
        model_bytes: memory of the backbone's weights, on both processors. On a GPU, also that of activations and
            pre-processed images. Under ``managed`` and ``pinned``, this is what torch's allocator has taken. Under
            ``device``, only the activations of recorded graphs count. The others lie in memory that all models share.
        memory: the memory policy of the model, or the kind of memory on a CPU.
        memory_reason: why the model has this memory.
        weights: the report on the backbone's streamed weights; None if they are resident.
        improvement: what was tried while the model served, what it gains, what it cost, and whether the search goes on.
        failure: why the backbone lost a batch; empty again once a later batch passed.
        left_out: number of impossible detections by kind; empty if the process of the report does not count them.
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
    improvement: str = ""
    failure: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport(ModelReport):
    """Counts since the start, and times over the last seconds. Times are NaN while there are no samples.

    Names that end in ``_s`` are seconds; ``p50`` and ``p99`` are the median and the 99th percentile.

    Attributes:
        time: when the report was made, in seconds of the steady clock.
        counts: the counts of the ledger.
        batches: number of batches that heads have finished so far.
        merged_batches: how many of ``batches`` had several frames.
        fused_batches: how many of ``batches`` were executed together with batches of other models.
        stacked_batches: how many of ``fused_batches`` were computed by one network together with the other batches.
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
