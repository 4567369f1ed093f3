"""A partition on streamed weights: from settings to a partition that reads them, and the model's own given back."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, fx

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.errors import ConfigurationError, StreamError
from split_infer_ros.pipeline.packed_weights import fetch, find_packed
from split_infer_ros.pipeline.settings import StageSettings, WeightsSettings
from split_infer_ros.runtime.heap import trim
from split_infer_ros.runtime.num_threads import max_threads, run_with_threads
from split_infer_ros.runtime.streams import Stream, current_fence
from split_infer_ros.split.graph import state_of
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import backbone_of, head_of
from split_infer_ros.split.split_points import SplitPoint
from split_infer_ros.weight_streaming.delay_model import Machine
from split_infer_ros.weight_streaming.device_stages import Processor
from split_infer_ros.weight_streaming.layer_times import time_model
from split_infer_ros.weight_streaming.packed_file import PAGE
from split_infer_ros.weight_streaming.partition_weights import Contents, open_contents
from split_infer_ros.weight_streaming.residency import ASYNCHRONOUS, AUTO, RESIDENT, TWO_STAGE, Placement, place
from split_infer_ros.weight_streaming.ring import RingPlan
from split_infer_ros.weight_streaming.ring_memory import CopiedRingMemory, MappedRingMemory, RingMemory
from split_infer_ros.weight_streaming.ring_size import choose, trade_off
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

PASSES = 4  # by which layers are timed


@dataclass(frozen=True, slots=True, eq=False)
class _Partition:
    """One of a model's partitions, before its weights are read.

    Attributes:
        of: split points it out of the model's graph.
        inputs: what it takes, an image's part each.
        threads: with which it runs on the CPU; None on a GPU.
        batch_size: for which its weights are laid out.
    """

    model: SplitModel
    of: Callable[[fx.GraphModule, SplitPoint], fx.GraphModule]
    split_point: SplitPoint
    inputs: tuple[TensorSpec, ...]
    threads: int | None
    batch_size: int

    @property
    def graph(self) -> fx.GraphModule:
        """With the model's own weights, as far as it has them."""
        return self.of(self.model.graph, self.split_point)

    def contents(self, path: Path) -> Contents:
        """What it reads of a file; a new one each time, as whoever runs it takes it over."""
        return open_contents(self.model, self.graph, path, self.threads)

    def blank(self, batch_size: int) -> list[Tensor]:
        """Inputs for so many images, on its device; in float32, as it computes in that."""
        device = torch.device("cpu") if self.threads else self.model.device
        found = []
        for spec in self.inputs:
            dtype = torch.float32 if spec.dtype.is_floating_point else spec.dtype
            blank = torch.zeros((batch_size, *spec.shape), dtype=dtype, device=device)
            found.append(blank.contiguous(memory_format=torch.channels_last) if blank.dim() == 4 else blank)
        return found


def stream_backbone(
    model: SplitModel,
    split_point: SplitPoint,
    settings: StageSettings,
    ring_memory: RingMemory | None = None,
    cores: int = 0,
) -> StreamedPartition | None:
    """The partition before the split point on streamed weights; None if they are to be resident, or it has none.

    The weights are packed first, unless that was done; then the model's own are given back.

    Args:
        model: whose partition it is.
        cut: behind it.
        settings: where weights are, and what they may take.
        home: a ring that partitions of several models take turns at, on the CPU; the settings' budget is its size.
        cores: with which it runs on a CPU, for which its weights are laid out; 0: all.

    Raises:
        ConfigurationError: no such file, budget or device; nothing has changed.
    """
    if settings.weights_residency != RESIDENT and model.dtype != torch.float32:
        raise ConfigurationError(
            f"weights_residency {settings.weights_residency} is for a backbone in fp32, and this one runs in "
            f"{str(model.dtype).removeprefix('torch.')}: take precision fp32, or resident."
        )
    threads = (cores or max_threads()) if model.device.type == "cpu" else None
    images = TensorSpec("images", model.entry.image_shape, torch.float32)
    return _stream(
        _Partition(model, backbone_of, split_point, (images,), threads, settings.batch_size), settings, ring_memory
    )


def stream_head(
    model: SplitModel, split_point: SplitPoint, settings: WeightsSettings, threads: int, batch_size: int
) -> StreamedPartition | None:
    """The partition behind the split point on streamed weights, on the CPU with so many cores; else as
    ``stream_backbone``.
    """
    return _stream(_Partition(model, head_of, split_point, split_point.tensors, threads, batch_size), settings)


def _stream(
    partition: _Partition, settings: WeightsSettings, ring_memory: RingMemory | None = None
) -> StreamedPartition | None:
    if settings.weights_residency == RESIDENT:
        return None
    path = find_packed(partition.model, settings.weights_file, partition.threads, partition.batch_size)
    try:
        contents = partition.contents(path)
        if not contents.uses:
            return None
        if ring_memory is not None:
            plan = place(settings.weights_residency, contents.sizes, contents.uses, ring_memory.nbytes).plan
            streamed = StreamedPartition(contents, plan, ring_memory=ring_memory)
        elif partition.threads is not None:
            streamed = _on_cpu(partition, settings, contents)
        else:
            streamed = _on_gpu(partition, settings, contents)
    except (OSError, StreamError) as error:
        raise ConfigurationError(f"Weights cannot be streamed: {error}") from error
    if partition.model.release(
        state_of(partition.graph).keys(), partial(fetch, partition.model, path, partition.threads)
    ):
        gc.collect()  # traced graphs refer to themselves, and hold weights until then
    trim()
    return streamed


def _on_cpu(partition: _Partition, settings: WeightsSettings, contents: Contents) -> StreamedPartition:
    budget = settings.weights_budget_bytes
    if settings.weights_residency == AUTO:
        placement = _best(partition, settings, contents)
    else:
        placement = place(settings.weights_residency, contents.sizes, contents.uses, budget, contents.kept_bytes)
    return StreamedPartition(contents, placement.plan, placement.resident)


def _on_gpu(partition: _Partition, settings: WeightsSettings, contents: Contents) -> StreamedPartition:
    """Two-stage where the disk can write to what the GPU reads, else three-stage, and it is said."""
    device, budget = partition.model.device, settings.weights_budget_bytes
    if settings.weights_residency == AUTO:
        raise ConfigurationError("weights_residency auto times layers on the CPU: on a GPU take another one.")
    processor = Processor(Stream(device).copy, partial(current_fence, device))
    note = ""
    if settings.weights_residency == TWO_STAGE:
        plan = place(TWO_STAGE, contents.sizes, contents.uses, budget, contents.kept_bytes).plan
        try:
            return _try(partition, contents, plan, MappedRingMemory(plan.capacity, device, processor))
        except (ConfigurationError, StreamError) as error:
            note = f"two_stage cannot be had here ({error}): asynchronous is used."
            contents = partition.contents(contents.path)
    residency = ASYNCHRONOUS if note else settings.weights_residency
    whole = max((*contents.sizes, PAGE))
    plan = place(residency, contents.sizes, contents.uses, budget, contents.kept_bytes, whole, sides=2).plan
    streamed = StreamedPartition(contents, plan, ring_memory=CopiedRingMemory(plan.capacity, device, processor))
    streamed.note = streamed.note or note
    return streamed


def _try(partition: _Partition, contents: Contents, plan: RingPlan, ring_memory: RingMemory) -> StreamedPartition:
    """A partition that has made a pass."""
    streamed = StreamedPartition(contents, plan, ring_memory=ring_memory)
    try:
        with torch.inference_mode():
            streamed(*partition.blank(1))
    except StreamError:
        streamed.close()
        raise
    return streamed


def _best(partition: _Partition, settings: WeightsSettings, contents: Contents) -> Placement:
    """The least memory with which a pass is as quick as with resident weights, by layers timed here."""
    sizes, uses, budget = contents.sizes, contents.uses, settings.weights_budget_bytes
    place(TWO_STAGE, sizes, uses, budget, contents.kept_bytes)  # or says what is needed
    inputs = partition.blank(partition.batch_size)

    def make(plan: RingPlan) -> StreamedPartition:
        return StreamedPartition(partition.contents(contents.path), plan)

    @torch.inference_mode()
    def run() -> Machine:
        return time_model(make, sizes, uses, inputs, PASSES)

    machine = run_with_threads(partition.threads, run)  # as the partition's own thread will
    points = trade_off(sizes, uses, machine, budget - contents.kept_bytes, settings.weights_delay_s)
    return choose(points, machine.compute, settings.weights_delay_s).placement
