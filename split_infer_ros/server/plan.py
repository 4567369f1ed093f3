"""A plan: everything that a batch needs on its way through the backbone. It is made and replaced as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.slots import Lease
from split_infer_ros.engines.compute import Backbone, compute_into_slot, start_backbone
from split_infer_ros.engines.cuda.cuda_graphs import GraphedBackbone
from split_infer_ros.engines.cuda.model_memory import ModelMemory
from split_infer_ros.images.pixel_input import PixelInput
from split_infer_ros.preprocessing.host_preprocessor import PixelPreprocessor
from split_infer_ros.preprocessing.loaded_batch import LoadedBatch
from split_infer_ros.preprocessing.preprocessor import Preprocessor
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.server.report import WeightsReport
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.transport import OwnedPool
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.split_points import SplitPoint
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

WARM_UP_RUNS = 2  # after this many runs, an engine has packed its weights and compiled
# settings that can change in the same memory
IMMEDIATE_SETTINGS = ("batch_timeout_s", "drop_policy", "lane_limit", "max_temperature_c")


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A backbone partition, a slot pool for its features, and a pre-processor for its images.

    Attributes:
        model: the model, with the engine and the precision in which the plan runs it.
        settings: the settings with which the plan was made.
        split_point: where the model is split.
        backbone: maps the pre-processor's output to the features, for up to ``batch_size`` images.
        pool: the slots for features.
        preprocessor: turns images into the backbone's input.
        memory_reason: why the pool has its memory policy.
        warm_up_sizes: the batch sizes that should run before frames come.
        memory: the memory of pre-processed images and activations on a GPU.
        weight_bytes: bytes of the model's backbone weights, in the memory of CPU and GPU together.
        graphs: the backbone recorded as CUDA graphs; None if it is not recorded.
        graph_note: why the backbone is not recorded although the settings ask for it; otherwise empty.
        has_lanes: whether lanes are prepared, so that batches can be computed side by side.
    """

    model: SplitModel
    settings: StageSettings
    split_point: SplitPoint
    backbone: Backbone
    pool: OwnedPool
    preprocessor: Preprocessor
    memory_reason: str
    memory: ModelMemory
    weight_bytes: int
    warm_up_sizes: tuple[int, ...]
    graphs: GraphedBackbone | None = None
    graph_note: str = ""
    has_lanes: bool = False

    @property
    def streamed(self) -> StreamedPartition | None:
        """The backbone if its weights are read while it runs; None if they stay in memory."""
        return self.backbone if isinstance(self.backbone, StreamedPartition) else None

    @property
    def may_use_lanes(self) -> bool:
        """Whether two batches may be computed side by side: the settings allow it, and weights are not streamed.

        Streamed weights are read for one batch at a time.
        """
        return self.settings.lane_limit > 1.0 and self.streamed is None

    @property
    def weights(self) -> WeightsReport | None:
        """The report on streamed weights; None if the weights stay in memory."""
        return WeightsReport.of(self.streamed)

    @property
    def cost_key(self) -> str:
        """A text that names what costs of executions depend on besides the model.

        This is the split point, the memory for streamed weights, and whether the backbone normalises images itself.
        """
        parts = [self.split_point.name]
        if self.streamed is not None:
            parts.append(f"weights through {self.streamed.weight_bytes} bytes")
        if self.pixels is not None:
            parts.append("from pixels")
        return ", ".join(parts)

    @property
    def pixels(self) -> PixelInput | None:
        """The form of images that the backbone takes and normalises itself; None if it gets normalised images."""
        return self.preprocessor.pixels if isinstance(self.preprocessor, PixelPreprocessor) else None

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about the plan's memory, weights and graphs, where they differ from the settings."""
        weights_note = self.streamed.note if self.streamed is not None else ""
        return [note for note in (self.pool.slots.note, self.memory.note, weights_note, self.graph_note) if note]

    @property
    def model_bytes(self) -> int:
        """Bytes of the weights. On a GPU, also those of activations and pre-processed images.

        Memory that all models share is not counted.
        """
        return self.weight_bytes + self.memory.bytes + (0 if self.graphs is None else self.graphs.bytes)

    @property
    def budget_bytes(self) -> int:
        """Bytes of the user's memory budget that the plan uses. Plans for co-runs share that memory."""
        return self.pool.bytes + self.preprocessor.bytes

    def close(self) -> None:
        """Frees the slots and ends the streaming of weights."""
        self.pool.close()
        if self.streamed is not None:
            self.streamed.close()

    def with_policy(self, policy: Policy) -> Plan | None:
        """Returns a plan that uses this plan's slots and staging buffers under another memory policy.

        Its backbone is not recorded. Returns None if the memory does not support the policy.
        """
        pool = self.pool.with_policy(policy)
        if pool is None:
            return None
        settings = replace(self.settings, memory_policy=policy.value)
        preprocessor = self.preprocessor.with_policy(policy)
        return replace(self, settings=settings, pool=pool, preprocessor=preprocessor, graphs=None)

    def with_settings(self, settings: StageSettings) -> Plan | None:
        """Returns this plan with other settings. Returns None if they need a new plan.

        Only the settings in ``IMMEDIATE_SETTINGS`` may differ, because they need no other split point or memory.
        """
        immediate = {name: getattr(settings, name) for name in IMMEDIATE_SETTINGS}
        return replace(self, settings=settings) if replace(self.settings, **immediate) == settings else None

    def load(self, images: Sequence[Any], lease: Lease) -> LoadedBatch:
        """Pre-processes the images of a batch that has a slot.

        If the backbone is recorded, the images are written to where the graphs of the slot read them.
        """
        return self.preprocessor.load(images, None if self.graphs is None else self.graphs.input_of(lease.slot))

    def run(self, loaded: LoadedBatch, lease: Lease, *, count: int, stream: Stream, copy_stream: Stream) -> Fence:
        """Launches the backbone for a batch. Returns the fence after which the features are in the slot.

        Args:
            loaded: the batch as ``load`` pre-processed it for this lease.
            lease: the lease of the slot.
            count: number of images in the batch.
            stream: the stream on which the backbone runs.
            copy_stream: the stream on which features are copied to the host, if they are copied. Meanwhile the next
                batch's backbone can run.
        """
        stream.wait_for(loaded.ready)
        with inference_mode(), stream.work("backbone"):
            if self.graphs is not None:
                self.graphs.run_into_slot(lease.slot, count)
            else:
                with self.memory.activations.allocating():
                    compute_into_slot(self.backbone, loaded.images, self.pool.slots, lease.slot)
        if not self.pool.slots.needs_copy:
            return stream.fence()
        copy_stream.wait_for(stream.fence())
        with inference_mode(), copy_stream.work("copy"):
            self.pool.slots.fetch(lease.slot, count)
        return copy_stream.fence()

    def warm_up(self, sizes: Sequence[int], stream: Stream, copy_stream: Stream) -> None:
        """Runs blank batches of some sizes, because the first ones choose kernels, pack weights and allocate memory.

        Does nothing if no slot is free.
        """
        lease = self.pool.acquire()
        if lease is None:
            return
        blank = self.model.blank_frame()
        try:
            with inference_mode():
                for count in sizes:
                    for _ in range(WARM_UP_RUNS):
                        loaded = self.load([blank] * count, lease)
                        self.run(loaded, lease, count=count, stream=stream, copy_stream=copy_stream).wait()
        finally:
            self.pool.revoke(lease)

    def warm_up_beside(self, sizes: Sequence[int]) -> None:
        """Runs blank batches of some sizes on a CPU, without a slot, so that frames that come can use all slots."""
        with inference_mode():
            for count in sizes:
                for _ in range(WARM_UP_RUNS):
                    start_backbone(self.backbone, self.preprocessor.load([self.model.blank_frame()] * count).images)
