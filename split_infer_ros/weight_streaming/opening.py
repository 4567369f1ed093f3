"""Opens a packed partition with a ring that suits its device: on the CPU, on the GPU, or shared by several models."""

from __future__ import annotations

from functools import partial

import torch

from split_infer_ros.errors import ConfigurationError, StreamError
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.streams import Stream, current_fence, current_mark
from split_infer_ros.weight_streaming.automatic_memory import choose_memory, plan_in_budget
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_partition import PackedPartition
from split_infer_ros.weight_streaming.partition_spec import PartitionSpec
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.ring_memory import CopiedRingMemory, MappedRingMemory, RingMemory
from split_infer_ros.weight_streaming.settings import WeightsSettings
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition


def open_in_shared_ring(
    packed: PackedPartition, settings: WeightsSettings, ring_memory: RingMemory
) -> StreamedPartition:
    """Opens a partition on the CPU in a ring that several models share. The ring's size is the budget.

    Raises:
        ConfigurationError: the ring is too small.
    """
    memory_plan = plan_memory(
        settings.weights_residency, packed.block_sizes, packed.step_blocks, budget_bytes=ring_memory.nbytes
    )
    return StreamedPartition.open(packed, memory_plan, ring_memory=ring_memory)


def open_on_cpu(spec: PartitionSpec, settings: WeightsSettings, packed: PackedPartition) -> StreamedPartition:
    """Opens a partition on the CPU with a ring of its own.

    With ``weights_residency`` ``auto``, it times the layers first, and chooses the ring from the times.

    Raises:
        ConfigurationError: the budget is too small.
    """

    def open_again(memory_plan: MemoryPlan) -> StreamedPartition:
        return StreamedPartition.open(spec.open_packed(packed.path), memory_plan)

    if settings.weights_residency is Residency.AUTO:
        memory_plan = choose_memory(spec, settings, packed, {False: open_again})
    else:
        memory_plan = plan_in_budget(settings.weights_residency, settings, packed)
    return StreamedPartition.open(packed, memory_plan)


def open_on_gpu(spec: PartitionSpec, settings: WeightsSettings, packed: PackedPartition) -> StreamedPartition:
    """Opens a partition on the GPU with a ring of its own.

    With two stages, the GPU reads the ring into which the disk writes. With three, a thread copies blocks from the host
    to the GPU. If two stages are not possible here, three are used, and the partition's ``note`` says so. With
    ``weights_residency`` ``auto``, the function times the layers with both first.

    Raises:
        ConfigurationError: the budget is too small.
    """
    device = spec.model.device
    ops = DeviceOps(Stream(device).copy, partial(current_fence, device), partial(current_mark, device))
    residency = settings.weights_residency
    note = ""
    if residency is Residency.AUTO:
        openers = dict.fromkeys(
            (False, True), lambda plan: _open(spec.open_packed(packed.path), plan, device, ops, is_timed=True)
        )
        return _open(packed, choose_memory(spec, settings, packed, openers), device, ops)
    if residency is Residency.TWO_STAGE:
        memory_plan = plan_in_budget(residency, settings, packed)
        try:
            return _open_and_run(spec, packed, memory_plan, ops)
        except (ConfigurationError, StreamError) as error:
            note = f"two_stage is not possible here ({error}): asynchronous is used."
            packed = spec.open_packed(packed.path)
            residency = Residency.ASYNCHRONOUS
    streamed = _open(packed, plan_in_budget(residency, settings, packed, is_copied=True), device, ops)
    streamed.note = streamed.note or note
    return streamed


def _open(
    packed: PackedPartition, memory_plan: MemoryPlan, device: Device, ops: DeviceOps, *, is_timed: bool = False
) -> StreamedPartition:
    """Opens a partition with one ring that host and GPU see (two stages), or one ring on each side (three stages).

    If ``is_timed``, the GPU times the partition's steps.
    """
    kind = MappedRingMemory if memory_plan.staging is None else CopiedRingMemory
    ring_memory = kind.allocate(memory_plan.ring.capacity, device, ops)
    return StreamedPartition.open(packed, memory_plan, ring_memory=ring_memory, mark=ops.mark if is_timed else None)


def _open_and_run(
    spec: PartitionSpec, packed: PackedPartition, memory_plan: MemoryPlan, ops: DeviceOps
) -> StreamedPartition:
    """Opens a partition with two stages, and runs a pass to see whether the disk can write to the ring."""
    streamed = _open(packed, memory_plan, spec.model.device, ops)
    try:
        with torch.inference_mode():
            streamed(*spec.zeros(1))
    except StreamError:
        streamed.close()
        raise
    return streamed
