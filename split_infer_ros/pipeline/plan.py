"""Everything that a batch needs on its way through the backbone. A plan is made and replaced as a whole."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.slots import Lease
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.errors import ConfigurationError, StreamError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.pipeline.budget import check_budget, image_buffers_budget
from split_infer_ros.pipeline.compute import compute_into_slot
from split_infer_ros.pipeline.cuda_graphs import Backbone, GraphedBackbone
from split_infer_ros.pipeline.memory_choice import MemoryAdvisor
from split_infer_ros.pipeline.preprocessor import LoadedBatch, Preprocessor, make_preprocessor
from split_infer_ros.pipeline.report import WeightsReport
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.pipeline.streaming import stream_backbone
from split_infer_ros.pipeline.transport import Connection, OwnedPool
from split_infer_ros.runtime.captures import CaptureError
from split_infer_ros.runtime.shortage import summarize_error
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.split_points import SplitPoint
from split_infer_ros.weight_streaming.ring_memory import RingMemory
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

WARM_UP_RUNS = 2  # after this many runs, an engine has packed its weights and compiled
IMMEDIATE_SETTINGS = ("batch_timeout_s", "drop_policy")  # settings that change without other memory


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A backbone partition, a slot pool for its features, and a pre-processor for its images.

    Attributes:
        settings: with which the plan was made.
        split_point: where the model is split.
        backbone: maps (n, 3, h, w) to the features, for n up to the batch size. On a GPU it may be recorded.
        pool: the slots for features.
        preprocessor: turns images into the backbone's input.
        memory_reason: why the pool has its memory policy.
        warm_up_sizes: the numbers of images that run before frames come.
        graph_note: why the backbone is not recorded although the settings ask for it.
    """

    settings: StageSettings
    split_point: SplitPoint
    backbone: Backbone
    pool: OwnedPool
    preprocessor: Preprocessor
    memory_reason: str
    warm_up_sizes: tuple[int, ...]
    graph_note: str = ""

    @classmethod
    def make(
        cls,
        *,
        model: SplitModel,
        settings: StageSettings,
        connection: Connection[Any],
        advisor: MemoryAdvisor,
        taken_bytes: float = 0.0,
        ring_memory: RingMemory | None = None,
        num_threads: int = 0,
    ) -> Plan:
        """Splits the model, chooses and allocates memory, and on a GPU records the backbone.

        Args:
            model: to split.
            settings: of the plan.
            connection: the way to the head, which makes the pool.
            advisor: chooses the memory policy.
            taken_bytes: of the memory budget, the part that other models have.
            ring_memory: the ring for streamed weights, if the model shares it with others.
            num_threads: with which the backbone runs on a CPU; 0: one for each core.

        Raises:
            ConfigurationError: the settings name no split point or memory policy of this model and machine, or memory
                is short. It is also raised if the GPU cannot run the batch, or if weights cannot be read. Nothing was
                kept.
        """
        split_point = model.split_point(settings.split_point)
        layout = Layout(split_point.tensors, settings.batch_size)
        with ExitStack() as undo:
            try:
                memory = advisor.choose(settings.memory_policy, layout, connection.shared)
                place = Place(memory.policy, model.device)
                input_bytes = model.entry.preprocess.staging(1).nbytes
                check_budget(
                    settings, split_point=split_point, place=place, input_bytes=input_bytes, taken_bytes=taken_bytes
                )
                pool = connection.make_pool(layout, settings.pool_slots, place)
                undo.callback(pool.close)
                place = Place(pool.slots.policy, model.device)  # another policy if there was no room for the chosen one
                preprocessor = make_preprocessor(
                    model.entry.preprocess,
                    batch_size=settings.batch_size,
                    dtype=model.dtype,
                    place=place,
                    budget_bytes=image_buffers_budget(
                        settings, split_point=split_point, place=place, input_bytes=input_bytes, taken_bytes=taken_bytes
                    ),
                    memory_format=model.execution_config.engine.memory_format,
                )
                streamed = stream_backbone(
                    model, split_point, settings, ring_memory=ring_memory, num_threads=num_threads
                )
                if streamed is not None:
                    undo.callback(streamed.close)
                plan = cls(
                    settings=settings,
                    split_point=split_point,
                    backbone=streamed or model.backbone(settings.split_point),
                    pool=pool,
                    preprocessor=preprocessor,
                    memory_reason=pool.slots.note or memory.reason,
                    warm_up_sizes=tuple(model.warm_up_sizes(settings.batch_size)),
                )
                if model.device.type == "cuda":
                    plan = plan._prepared_on_gpu(model)
            except StreamError as error:  # raised on a GPU, where the plan ran once
                raise ConfigurationError(f"Weights cannot be streamed: {error}") from error
            except RuntimeError as error:
                raise ConfigurationError(
                    f"A batch of {settings.batch_size} images of {model.entry.name} does not fit into {model.device}'s "
                    f"memory, or cannot run or be recorded there ({summarize_error(error)}): "
                    "take a smaller batch_size, or cuda_graphs false."
                ) from error
            undo.pop_all()
            return plan

    def _prepared_on_gpu(self, model: SplitModel) -> Plan:
        """Returns the plan with its backbone recorded, or runs the backbone once: only that shows a lack of memory."""
        plan = self
        is_recordable = self.streamed is None and not isinstance(self.backbone, EnginePart)
        if self.settings.cuda_graphs and is_recordable:
            try:
                return replace(self, backbone=_record(self.backbone, model, self.settings.batch_size))
            except CaptureError as error:
                plan = replace(self, graph_note=f"{model.entry.name} runs without CUDA graphs, more slowly: {error}")
        plan.warm_up(Stream(model.device), Stream(model.device))
        return plan

    @property
    def streamed(self) -> StreamedPartition | None:
        """The backbone, if its weights are read while it runs."""
        return self.backbone if isinstance(self.backbone, StreamedPartition) else None

    @property
    def weights(self) -> WeightsReport | None:
        """The report on streamed weights, or None if they are resident."""
        return WeightsReport.of(self.streamed)

    @property
    def cost_key(self) -> str:
        """The split point and the memory for streamed weights. Besides the model, the plan's costs depend on these."""
        name = self.split_point.name
        return name if self.streamed is None else f"{name}, weights through {self.streamed.weight_bytes} bytes"

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about the plan's memory, weights and graphs, where they differ from the settings."""
        weights_note = self.streamed.note if self.streamed is not None else ""
        return [note for note in (self.pool.slots.note, weights_note, self.graph_note) if note]

    def close(self) -> None:
        """Frees the slots and ends the streaming of weights."""
        self.pool.close()
        if self.streamed is not None:
            self.streamed.close()

    def with_settings(self, settings: StageSettings) -> Plan | None:
        """Returns the same plan under other settings, or None if these need another split point or other memory."""
        immediate = {name: getattr(settings, name) for name in IMMEDIATE_SETTINGS}
        return replace(self, settings=settings) if replace(self.settings, **immediate) == settings else None

    def run(self, loaded: LoadedBatch, lease: Lease, *, count: int, stream: Stream, copy_stream: Stream) -> Fence:
        """Gives the backbone of a batch to the device. Returns the fence from which on features are in the slot.

        Args:
            loaded: the pre-processed batch.
            lease: of the slot.
            count: number of images in the batch.
            stream: on which the backbone runs.
            copy_stream: on which features are copied to the host, if they are, during the next batch's backbone.
        """
        stream.wait_for(loaded.ready)
        with torch.inference_mode(), stream.work("backbone"):
            compute_into_slot(self.backbone, loaded.images, self.pool.slots, lease.slot)
        if not self.pool.slots.needs_copy:
            return stream.fence()
        copy_stream.wait_for(stream.fence())
        with torch.inference_mode(), copy_stream.work("copy"):
            self.pool.slots.fetch(lease.slot, count)
        return copy_stream.fence()

    @torch.inference_mode()
    def warm_up(self, stream: Stream, copy_stream: Stream) -> None:
        """Runs blank batches, because the first ones choose kernels, pack weights and allocate memory."""
        lease = self.pool.acquire()
        if lease is None:
            return
        blank = Pixels.blank()
        try:
            for count in self.warm_up_sizes:
                for _ in range(WARM_UP_RUNS):
                    loaded = self.preprocessor.load([blank] * count)
                    self.run(loaded, lease, count=count, stream=stream, copy_stream=copy_stream).wait()
        finally:
            self.pool.revoke(lease)


def _record(backbone: Backbone, model: SplitModel, batch_size: int) -> GraphedBackbone:
    with torch.inference_mode():
        example = torch.zeros((batch_size, *model.entry.image_shape), device=model.device, dtype=model.dtype)
        return GraphedBackbone.record(backbone, example.contiguous(memory_format=torch.channels_last))
