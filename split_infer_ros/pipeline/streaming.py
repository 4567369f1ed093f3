"""Streams the weights of a partition: from the settings to a partition that reads its weights while it runs.

The model's own weights are released once the partition streams them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, fx

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.module_state import state_of
from split_infer_ros.errors import ConfigurationError, StreamError
from split_infer_ros.pipeline.packed_weights import fetch_weights, find_packed, streamable
from split_infer_ros.pipeline.settings import StageSettings, WeightsSettings
from split_infer_ros.runtime.heap import trim
from split_infer_ros.runtime.num_threads import max_threads, run_with_threads
from split_infer_ros.runtime.streams import Stream, current_fence
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import backbone_of, head_of
from split_infer_ros.split.split_points import SplitPoint
from split_infer_ros.split.torch_model import TorchModel
from split_infer_ros.weight_streaming.delay_model import StreamingProfile
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.packed_partition import PackedPartition, open_packed
from split_infer_ros.weight_streaming.profiling import profile_partition
from split_infer_ros.weight_streaming.residency import MemoryPlan, Residency, plan_memory
from split_infer_ros.weight_streaming.ring_memory import CopiedRingMemory, MappedRingMemory, RingMemory
from split_infer_ros.weight_streaming.ring_size import choose_trial, predict_trade_off
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

PROFILE_PASSES = 4


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _PartitionSpec:
    """A partition of a model that is to be streamed.

    Attributes:
        model: to which it belongs.
        extract: takes the partition from the model's graph.
        split_point: at which the partition ends or begins.
        inputs: of the partition, for one image.
        num_threads: with which it runs on the CPU; None on a GPU.
        batch_size: for which its weights are laid out.
    """

    model: TorchModel
    extract: Callable[[fx.GraphModule, SplitPoint], fx.GraphModule]
    split_point: SplitPoint
    inputs: tuple[TensorSpec, ...]
    num_threads: int | None
    batch_size: int

    @property
    def graph(self) -> fx.GraphModule:
        """The partition's graph, with those of the model's own weights that were not released."""
        return self.extract(self.model.graph, self.split_point)

    def open_packed(self, path: Path) -> PackedPartition:
        """Finds the partition's weights in a file. A streamed partition takes the result over."""
        return open_packed(self.model, self.graph, path, num_threads=self.num_threads)

    def zeros(self, batch_size: int) -> list[Tensor]:
        """Returns inputs for that many images, on the partition's device and in float32, in which it computes."""
        device = torch.device("cpu") if self.num_threads else self.model.device
        inputs = []
        for spec in self.inputs:
            dtype = torch.float32 if spec.dtype.is_floating_point else spec.dtype
            values = torch.zeros((batch_size, *spec.shape), dtype=dtype, device=device)
            inputs.append(values.contiguous(memory_format=torch.channels_last) if values.dim() == 4 else values)
        return inputs


def stream_backbone(
    model: SplitModel,
    split_point: SplitPoint,
    settings: StageSettings,
    *,
    ring_memory: RingMemory | None = None,
    num_threads: int = 0,
) -> StreamedPartition | None:
    """Returns the backbone partition on streamed weights, or None if it is resident or has no weights.

    Packs the weights first if there is no packed file yet. Then the model's own weights are released.

    Args:
        model: whose backbone it is.
        split_point: at which the backbone ends.
        settings: where weights are, and how much memory they may take.
        ring_memory: a ring on the CPU that several models' partitions share. Its size is the budget.
        num_threads: with which the backbone runs on a CPU; 0: one for each core.

    Raises:
        ConfigurationError: the file, budget or device does not allow it. Nothing has changed.
    """
    if settings.weights_residency is Residency.RESIDENT:
        return None
    if model.dtype != torch.float32:
        raise ConfigurationError(
            f"weights_residency {settings.weights_residency.value} is for a backbone in fp32, and this one runs in "
            f"{str(model.dtype).removeprefix('torch.')}: take precision fp32, or resident."
        )
    spec = _PartitionSpec(
        model=streamable(model),
        extract=backbone_of,
        split_point=split_point,
        inputs=(TensorSpec("images", model.entry.image_shape, torch.float32),),
        num_threads=(num_threads or max_threads()) if model.device.type == "cpu" else None,
        batch_size=settings.batch_size,
    )
    return _stream(spec, settings, ring_memory)


def stream_head(
    model: SplitModel, split_point: SplitPoint, settings: WeightsSettings, *, num_threads: int, batch_size: int
) -> StreamedPartition | None:
    """Returns the head partition on streamed weights on the CPU, or None if it is resident or has no weights.

    Packs the weights first if there is no packed file yet. Then the model's own weights are released.

    Args:
        model: whose head it is.
        split_point: at which the head begins.
        settings: where weights are, and how much memory they may take.
        num_threads: with which the head runs.
        batch_size: for which weights are laid out.

    Raises:
        ConfigurationError: the file or budget does not allow it. Nothing has changed.
    """
    if settings.weights_residency is Residency.RESIDENT:
        return None
    spec = _PartitionSpec(
        model=streamable(model),
        extract=head_of,
        split_point=split_point,
        inputs=split_point.tensors,
        num_threads=num_threads,
        batch_size=batch_size,
    )
    return _stream(spec, settings)


def _stream(
    spec: _PartitionSpec, settings: WeightsSettings, ring_memory: RingMemory | None = None
) -> StreamedPartition | None:
    path = find_packed(spec.model, settings.weights_file, num_threads=spec.num_threads, batch_size=spec.batch_size)
    try:
        packed = spec.open_packed(path)
        if not packed.step_blocks:
            return None
        if ring_memory is not None:
            streamed = _open_in_shared_ring(packed, settings, ring_memory)
        elif spec.num_threads is not None:
            streamed = _open_on_cpu(spec, settings, packed)
        else:
            streamed = _open_on_gpu(spec, settings, packed)
    except (OSError, StreamError) as error:
        raise ConfigurationError(f"Weights cannot be streamed: {error}") from error
    if spec.model.release(
        state_of(spec.graph).keys(),
        lambda names: fetch_weights(spec.model, path, num_threads=spec.num_threads, names=names),
    ):
        gc.collect()  # traced graphs refer to themselves, and hold weights until then
    trim()
    return streamed


def _open_in_shared_ring(
    packed: PackedPartition, settings: WeightsSettings, ring_memory: RingMemory
) -> StreamedPartition:
    memory_plan = plan_memory(
        settings.weights_residency, packed.block_sizes, packed.step_blocks, budget_bytes=ring_memory.nbytes
    )
    return StreamedPartition.open(packed, memory_plan, ring_memory=ring_memory)


def _open_on_cpu(spec: _PartitionSpec, settings: WeightsSettings, packed: PackedPartition) -> StreamedPartition:
    if settings.weights_residency is Residency.AUTO:
        memory_plan = _plan_auto(spec, settings, packed)
    else:
        memory_plan = _plan(settings.weights_residency, settings, packed)
    return StreamedPartition.open(packed, memory_plan)


def _open_on_gpu(spec: _PartitionSpec, settings: WeightsSettings, packed: PackedPartition) -> StreamedPartition:
    """Opens two stages if the disk can write to memory that the GPU reads. Else opens three stages with a note."""
    device = spec.model.device
    residency = settings.weights_residency
    if residency is Residency.AUTO:
        raise ConfigurationError("weights_residency auto times layers on the CPU: on a GPU take another one.")
    ops = DeviceOps(Stream(device).copy, partial(current_fence, device))
    note = ""
    if residency is Residency.TWO_STAGE:
        memory_plan = _plan(residency, settings, packed)
        try:
            ring_memory = MappedRingMemory.allocate(memory_plan.ring.capacity, device, ops)
            return _open_and_run(spec, packed, memory_plan, ring_memory)
        except (ConfigurationError, StreamError) as error:
            note = f"two_stage is not possible here ({error}): asynchronous is used."
            packed = spec.open_packed(packed.path)
            residency = Residency.ASYNCHRONOUS
    memory_plan = plan_memory(
        residency,
        packed.block_sizes,
        packed.step_blocks,
        budget_bytes=settings.weights_budget_bytes,
        kept_bytes=packed.kept_bytes,
        chunk_bytes=max((*packed.block_sizes, PAGE)),  # blocks are copied as a whole
        sides=2,
    )
    copied = CopiedRingMemory.allocate(memory_plan.ring.capacity, device, ops)
    streamed = StreamedPartition.open(packed, memory_plan, ring_memory=copied)
    streamed.note = streamed.note or note
    return streamed


def _open_and_run(
    spec: _PartitionSpec, packed: PackedPartition, memory_plan: MemoryPlan, ring_memory: RingMemory
) -> StreamedPartition:
    """Opens a partition and runs a pass, which shows whether the disk can write to the ring."""
    streamed = StreamedPartition.open(packed, memory_plan, ring_memory=ring_memory)
    try:
        with torch.inference_mode():
            streamed(*spec.zeros(1))
    except StreamError:
        streamed.close()
        raise
    return streamed


def _plan(residency: Residency, settings: WeightsSettings, packed: PackedPartition) -> MemoryPlan:
    return plan_memory(
        residency,
        packed.block_sizes,
        packed.step_blocks,
        budget_bytes=settings.weights_budget_bytes,
        kept_bytes=packed.kept_bytes,
    )


def _plan_auto(spec: _PartitionSpec, settings: WeightsSettings, packed: PackedPartition) -> MemoryPlan:
    """Plans the least memory with which a pass is as fast as with resident weights. Times layers to find it."""
    _plan(Residency.TWO_STAGE, settings, packed)  # raises an error if the budget is too small for any ring
    inputs = spec.zeros(spec.batch_size)

    def open_partition(memory_plan: MemoryPlan) -> StreamedPartition:
        return StreamedPartition.open(spec.open_packed(packed.path), memory_plan)

    @torch.inference_mode()
    def run() -> StreamingProfile:
        return profile_partition(
            open_partition, packed.block_sizes, packed.step_blocks, inputs=inputs, passes=PROFILE_PASSES
        )

    profile = run_with_threads(spec.num_threads, run)  # with as many threads as the partition's own thread will have
    trials = predict_trade_off(
        packed.block_sizes,
        packed.step_blocks,
        profile,
        max_bytes=settings.weights_budget_bytes - packed.kept_bytes,
        allowed_s=settings.weights_delay_s,
    )
    return choose_trial(trials, profile.compute_s, settings.weights_delay_s).memory_plan
