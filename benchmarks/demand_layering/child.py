"""Runs one model with its weights in one residency. The benchmark measures the memory of this process from outside.

    python benchmarks demand_layering.child MODEL FILE RESIDENCY PASSES [RESIDENT_BLOCKS CAPACITY]

prints three lines, and waits for a line of input after each line:

- ``ready``: everything but the weights is loaded.
- ``open``: everything that the residency needs is loaded.
- ``done``: the passes have run.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.demand_layering.rivals import Partition, load_each_pass, map_file, offload, share_one_place
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.runtime.heap import trim
from split_infer_ros.split.graph import set_state
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import backbone_of
from split_infer_ros.split.weightless_network import weightless_network
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_partition import PackedPartition, open_packed
from split_infer_ros.weight_streaming.packed_weights import streamable
from split_infer_ros.weight_streaming.residency import Residency, blocks_in_ring, plan_memory
from split_infer_ros.weight_streaming.ring_memory import byte_view, page_aligned
from split_infer_ros.weight_streaming.ring_plan import CHUNK_BYTES, plan_double_buffer, plan_ring
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.unpack import unpack_weights
from split_infer_ros.weight_streaming.weights_file import WeightsFile

RESIDENT = Residency.RESIDENT.value
SYNCHRONOUS = Residency.SYNCHRONOUS.value
ASYNCHRONOUS = Residency.ASYNCHRONOUS.value
TWO_STAGE = Residency.TWO_STAGE.value
AUTO = Residency.AUTO.value
MAPPED, WHOLE, OFFLOADED, NOTHING = "mmap", "whole load", "accelerate", "nothing"  # residencies of rivals


class AutoPlan(NamedTuple):
    """The memory that residency ``auto`` chose.

    Attributes:
        resident_blocks: the number of blocks that stay in memory.
        capacity: the bytes of the ring buffer.
        has_two_buffers: 1 if blocks pass through two buffers in turns in place of a ring.
    """

    resident_blocks: int = 0
    capacity: int = 0
    has_two_buffers: int = 0

    def memory_plan(self, packed: PackedPartition) -> MemoryPlan:
        """Returns the plan with this memory."""
        sizes = packed.block_sizes[self.resident_blocks :]
        steps = blocks_in_ring(packed.step_blocks, self.resident_blocks)
        if self.has_two_buffers:
            return MemoryPlan(self.resident_blocks, plan_double_buffer(sizes, steps, chunk_bytes=CHUNK_BYTES))
        return MemoryPlan(self.resident_blocks, plan_ring(sizes, steps, self.capacity))


def images_of(model: SplitModel) -> Tensor:
    """Returns one image of noise, float32 (1, C, H, W) in channels last, of the model's size."""
    images = torch.rand(1, *model.entry.image_shape, generator=torch.Generator().manual_seed(0))
    return images.contiguous(memory_format=torch.channels_last)


def open_whole(model: SplitModel, path: Path, *, num_threads: int | None) -> PackedPartition:
    """Finds the weights of the whole model in a packed file; see ``open_packed``."""
    network = streamable(model)
    whole = backbone_of(network.graph.module, network.split_point("output"))
    return open_packed(network, whole, path, num_threads=num_threads)


def open_partition(model: SplitModel, path: Path, residency: str, plan: AutoPlan) -> Partition:
    """Returns the whole model with its weights in a residency.

    Args:
        model: the model, without weights in memory. Only ``resident`` sets them.
        path: the file of packed weights.
        residency: where the weights are: a residency of the package, or that of a rival. ``mmap`` maps the file and
            drops its pages before each pass. ``whole load`` reads all weights at the start of each pass. ``accelerate``
            offloads to a disk. ``nothing`` reads nothing and has all layers in one place.
        plan: the memory for ``auto``; other residencies ignore it.
    """
    num_threads = torch.get_num_threads()
    if residency == RESIDENT:
        network = streamable(model)
        state = state_of(network.graph.module)
        set_state(network.graph.module, unpack_weights(network, path, num_threads=num_threads, names=state.keys()))
        return model.backbone("output")
    if residency == OFFLOADED:
        return offload(model, path.with_suffix(".offloaded"))
    packed = open_whole(model, path, num_threads=num_threads)
    if residency == MAPPED:
        return map_file(packed)
    if residency == WHOLE:
        return load_each_pass(packed)
    if residency == NOTHING:
        return share_one_place(packed)
    if residency == AUTO:
        return StreamedPartition.open(packed, plan.memory_plan(packed))
    return StreamedPartition.open(packed, plan_memory(Residency(residency), packed.block_sizes, packed.step_blocks))


def full_read(packed: PackedPartition) -> Callable[[], None]:
    """Returns a function that reads all weights once, past the page cache, into the same memory."""
    file, memory = WeightsFile.open(packed.path), byte_view(page_aligned(max(packed.block_sizes)))

    def run() -> None:
        for block in packed.blocks:
            file.read(block.offset, memory[: block.nbytes], block.pieces[0].layer)

    return run


def main() -> int:
    """Runs one residency. Each step waits for a line from the parent process."""
    name, path, residency, passes, *plan = sys.argv[1:]
    model = SplitModel(weightless_network(find_model(name)))
    images = images_of(model)
    print("ready", flush=True)
    sys.stdin.readline()
    partition = open_partition(model, Path(path), residency, AutoPlan(*map(int, plan)))
    trim()
    print("open", flush=True)
    sys.stdin.readline()
    pass_times_s = []
    with torch.inference_mode():
        for _ in range(int(passes)):
            start = time.perf_counter()
            partition(images)
            pass_times_s.append(time.perf_counter() - start)
    print("done", json.dumps(pass_times_s), flush=True)
    sys.stdin.readline()
    return 0
