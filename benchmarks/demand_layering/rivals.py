"""The obvious rivals of weight streaming: mmap, loading the whole model in each pass, and accelerate's disk offload."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import backbone_of
from split_infer_ros.weight_streaming.binding import PiecePlaces, add_places, bind_weights
from split_infer_ros.weight_streaming.packed_partition import PackedPartition
from split_infer_ros.weight_streaming.packed_weights import streamable
from split_infer_ros.weight_streaming.ring_memory import byte_view, page_aligned
from split_infer_ros.weight_streaming.weights_file import Block, WeightsFile

Partition = Callable[[Tensor], Sequence[Tensor]]


class NoHooks:
    """Step hooks that do nothing: no step waits for weights."""

    def begin_step(self, step: int) -> None:
        """Does nothing."""

    def end_step(self, step: int) -> None:
        """Does nothing."""


def map_file(packed: PackedPartition) -> Partition:
    """Returns the partition with its weights in a mapped file.

    Page faults load the weights, and the kernel is told to read ahead. Each pass begins with cold pages.
    """
    descriptor = os.open(packed.path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    view = torch.frombuffer(memory, dtype=torch.uint8)
    places = {(piece.layer, piece.row): (view, piece.offset) for piece in packed.header.pieces}
    graph = bind_weights(packed, places, NoHooks())
    madvise, start = ctypes.CDLL(None).madvise, view.data_ptr()
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def run(images: Tensor, mapping: Tensor = view) -> Sequence[Tensor]:  # keeps it alive; blocked weights do not
        madvise(start, size, mmap.MADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # cold pages, as for all rivals
        madvise(start, size, mmap.MADV_SEQUENTIAL)
        results: Sequence[Tensor] = graph(images)
        return results

    return run


def load_each_pass(packed: PackedPartition) -> Partition:
    """Returns the partition with memory for all weights. Each pass reads all of them at its start."""
    starts = _one_behind_the_other(packed)
    memory = page_aligned(sum(packed.block_sizes))
    file = WeightsFile.open(packed.path)
    graph = _bind_to(packed, file, memory, starts)
    view = byte_view(memory)

    def run(images: Tensor) -> Sequence[Tensor]:
        for block, start in zip(packed.blocks, starts, strict=True):
            file.read(block.offset, view[start : start + block.nbytes], block.pieces[0].layer)
        results: Sequence[Tensor] = graph(images)
        return results

    return run


def load_once(packed: PackedPartition) -> Partition:
    """Returns the partition with all weights in memory, in the form in which they are streamed."""
    starts = _one_behind_the_other(packed)
    memory = page_aligned(sum(packed.block_sizes))
    file = WeightsFile.open(packed.path)
    graph = _bind_to(packed, file, memory, starts)
    file.load(packed.blocks, byte_view(memory))
    file.close()
    return _keeping(memory, graph)


def share_one_place(packed: PackedPartition) -> Partition:
    """Returns the partition with the weights of all layers in the same place of memory, without reading any.

    So it needs the memory of a partition without the weights, plus that of its largest block. Its results mean nothing.
    """
    memory = page_aligned(max(packed.block_sizes))
    graph = _bind_to(packed, WeightsFile.open(packed.path), memory, [0] * len(packed.blocks))
    return _keeping(memory, graph)


def _one_behind_the_other(packed: PackedPartition) -> list[int]:
    """Returns the start of each block in memory for all blocks, in bytes."""
    return [sum(packed.block_sizes[:index]) for index in range(len(packed.blocks))]


def _keeping(memory: Tensor, graph: Partition) -> Partition:
    """Returns a partition that keeps the memory of its weights alive. Blocked weights do not."""

    def run(images: Tensor, mapping: Tensor = memory) -> Sequence[Tensor]:
        return graph(images)

    return run


def _bind_to(packed: PackedPartition, file: WeightsFile, memory: Tensor, starts: Sequence[int]) -> Partition:
    """Loads the weights that always stay in memory, and binds each block to its start in ``memory``."""
    kept_blocks = [Block((piece,)) for piece in packed.kept]
    kept_memory = page_aligned(packed.kept_bytes)
    places: PiecePlaces = {}
    offset = 0
    for block in kept_blocks:
        add_places(places, block, kept_memory, offset)
        offset += block.nbytes
    for block, start in zip(packed.blocks, starts, strict=True):
        add_places(places, block, memory, start)
    file.load(kept_blocks, byte_view(kept_memory))
    memory.zero_()  # pages that were never written would take no memory
    return bind_weights(packed, places, NoHooks())


def can_offload() -> bool:
    """True if accelerate is installed."""
    return importlib.util.find_spec("accelerate") is not None


def offload(model: SplitModel, folder: Path) -> Partition:
    """Returns the model with accelerate's disk offload, which loads layer by layer. Convolutions are not fused.

    If the folder does not exist, the model's weights are written to it. Otherwise the folder's weights are used.
    """
    from accelerate import disk_offload

    partition = backbone_of(streamable(model).graph.module, model.split_point("output"))
    disk_offload(partition, folder, execution_device=torch.device("cpu"), offload_buffers=True)

    def run(images: Tensor) -> Sequence[Tensor]:
        for path in folder.iterdir():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # cold pages, as for all rivals
        results: Sequence[Tensor] = partition(images)
        return results

    return run
