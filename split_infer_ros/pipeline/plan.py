"""All that one batch needs to go through the backbone, made as a whole and replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.slots import Lease
from split_infer_ros.errors import ConfigurationError, StreamError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.pipeline.budget import check_budget, left_for_images
from split_infer_ros.pipeline.cuda_graphs import GraphedBackbone
from split_infer_ros.pipeline.memory_choice import MemoryAdvisor
from split_infer_ros.pipeline.preprocessor import Loaded, Preprocessor, make_preprocessor
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

TWICE = 2  # what comes so often running is packed, or compiled
ACT_AT_ONCE = ("batch_timeout_s", "drop_policy")  # settings that need no other memory


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A model cut somewhere, a pool for what crosses there, and the way in for a batch of images.

    Attributes:
        backbone: (n, 3, h, w) to what crosses, n up to the batch size; eager or, on a GPU, recorded.
        memory_reason: why the pool lies in what it lies in.
        graph_note: why the backbone is not recorded, where it was to be.
    """

    settings: StageSettings
    split_point: SplitPoint
    backbone: Callable[[Tensor], Sequence[Tensor]]
    pool: OwnedPool
    preprocessor: Preprocessor
    memory_reason: str
    graph_note: str = ""

    @classmethod
    def make(
        cls,
        model: SplitModel,
        settings: StageSettings,
        connection: Connection[Any],
        advisor: MemoryAdvisor,
        taken_bytes: float = 0.0,
        ring_memory: RingMemory | None = None,
        cores: int = 0,
    ) -> Plan:
        """Cut, choose memory and allocate it, and on a GPU record.

        Args:
            model: that is split.
            settings: in force from now on.
            connection: the way to the head, which makes the pool.
            advisor: which chooses the memory.
            taken_bytes: of the memory budget, what other models have.
            ring_memory: the ring for weights that are read, if it is not this model's alone.
            cores: with which the backbone runs on a CPU; 0: all.

        Raises:
            ConfigurationError: no such cut, or no such memory, or a GPU cannot run such a batch, or weights cannot be
                read, or not again; nothing was kept.
        """
        split_point = model.split_point(settings.split_point)
        layout = Layout(split_point.tensors, settings.batch_size)
        with ExitStack() as undo:
            try:
                memory = advisor.choose(settings.memory_policy, layout, connection.shared)
                input_bytes = model.entry.preprocess.staging(1).nbytes
                check_budget(settings, split_point, Place(memory.policy, model.device), input_bytes, taken_bytes)
                pool = connection.make_pool(layout, settings.pool_slots, Place(memory.policy, model.device))
                undo.callback(pool.close)
                place = Place(pool.slots.policy, model.device)  # which is another one where there was no room
                left = left_for_images(settings, split_point, place, input_bytes, taken_bytes)
                preprocessor = make_preprocessor(model.entry.preprocess, settings.batch_size, model.dtype, place, left)
                streamed = stream_backbone(model, split_point, settings, ring_memory=ring_memory, num_threads=cores)
                backbone = streamed or model.backbone(settings.split_point)
                made = cls(settings, split_point, backbone, pool, preprocessor, pool.slots.note or memory.reason)
                if made.stream is not None:
                    undo.callback(made.stream.close)
                if model.device.type == "cuda":
                    made = made._tried(model)
            except StreamError as error:  # on a GPU, where the plan was tried
                raise ConfigurationError(f"Weights cannot be streamed: {error}") from error
            except RuntimeError as error:
                raise ConfigurationError(
                    f"A batch of {settings.batch_size} images of {model.entry.name} does not fit into {model.device}'s "
                    f"memory, or cannot run or be recorded there ({summarize_error(error)}): "
                    "take a smaller batch_size, or cuda_graphs false."
                ) from error
            undo.pop_all()
            return made

    def _tried(self, model: SplitModel) -> Plan:
        """The same, recorded, or run once: what a GPU has not the memory for shows then only."""
        tried = self
        if self.settings.cuda_graphs and self.stream is None:
            try:
                return replace(self, backbone=_recorded(self.backbone, model, self.settings.batch_size))
            except CaptureError as error:
                tried = replace(self, graph_note=f"{model.entry.name} runs without CUDA graphs, more slowly: {error}")
        tried.warm_up(Stream(model.device), Stream(model.device))
        return tried

    @property
    def stream(self) -> StreamedPartition | None:
        """The backbone, if its weights are read while it runs."""
        return self.backbone if isinstance(self.backbone, StreamedPartition) else None

    @property
    def weights(self) -> WeightsReport | None:
        """What is to be said of weights that are read."""
        return WeightsReport.of(self.stream)

    @property
    def form(self) -> str:
        """What its costs depend on besides the model: the split point, and memory for weights that are read."""
        return self.split_point.name + (f", weights through {self.stream.weight_bytes} bytes" if self.stream else "")

    @property
    def notes(self) -> list[str]:
        """What is to be said of its memory, its weights and its graphs, sentences."""
        weights = self.stream.note if self.stream else ""
        return [note for note in (self.pool.slots.note, weights, self.graph_note) if note]

    def close(self) -> None:
        """Free the slots, and stop reading."""
        self.pool.close()
        if self.stream is not None:
            self.stream.close()

    def with_settings(self, settings: StageSettings) -> Plan | None:
        """The same plan under other settings, where these need no other split point and no other memory; else None."""
        mine = replace(self.settings, **{name: getattr(settings, name) for name in ACT_AT_ONCE})
        return replace(self, settings=settings) if mine == settings else None

    def run(self, stream: Stream, copies: Stream, loaded: Loaded, lease: Lease, count: int) -> Fence:
        """Have the backbone leave the features of ``count`` images in the slot; they are there at the fence.

        Where features are copied to the host, that is done in ``copies``, beside the next batch's backbone.
        """
        stream.wait_for(loaded.ready)
        with torch.inference_mode(), stream.work("backbone"):
            self.pool.slots.write(lease.slot, self.backbone(loaded.images))
        if not self.pool.slots.needs_copy:
            return stream.fence()
        copies.wait_for(stream.fence())
        with torch.inference_mode(), copies.work("copy"):
            self.pool.slots.fetch(lease.slot, count)
        return copies.fence()

    @torch.inference_mode()
    def warm_up(self, stream: Stream, copies: Stream) -> None:
        """Run blank batches: the first ones choose kernels, pack and allocate, and nobody should wait for that."""
        lease = self.pool.acquire()
        if lease is None:
            return
        blank = Pixels.blank()
        try:
            for count in {1, self.settings.batch_size}:
                for _ in range(TWICE):
                    self.run(stream, copies, self.preprocessor.load([blank] * count), lease, count).wait()
        finally:
            self.pool.revoke(lease)


def _recorded(backbone: Callable[[Tensor], Sequence[Tensor]], model: SplitModel, batch_size: int) -> GraphedBackbone:
    with torch.inference_mode():
        example = torch.zeros((batch_size, *model.entry.image_shape), device=model.device, dtype=model.dtype)
        return GraphedBackbone(backbone, example.contiguous(memory_format=torch.channels_last))
