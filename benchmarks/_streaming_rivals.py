"""The obvious rivals of streaming: mapped weights, the whole model read each time, accelerate's offload to a disk."""

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
from split_infer_ros.weight_streaming.partition_weights import Contents
from split_infer_ros.weight_streaming.ring_memory import buffer, page_aligned
from split_infer_ros.weight_streaming.streamed_partition import Places, bind
from split_infer_ros.weight_streaming.weights_file import WeightsFile

Half = Callable[[Tensor], Sequence[Tensor]]


class Open:
    """A gate that waits for nothing."""

    def begin(self, step: int) -> None:
        """A step begins."""

    def end(self, step: int) -> None:
        """A step ends."""


def mapped(contents: Contents) -> Half:
    """Weights where the file is mapped; by the advice, the kernel reads more pages ahead of those that are touched."""
    descriptor = os.open(contents.path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    view = torch.frombuffer(memory, dtype=torch.uint8)
    places = {(piece.layer, piece.row): (view, piece.offset) for piece in contents.header.pieces}
    graph = bind(contents, places, Open())
    madvise, start = ctypes.CDLL(None).madvise, view.data_ptr()
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def run(images: Tensor, mapping: Tensor = view) -> Sequence[Tensor]:  # blocked weights do not hold it
        madvise(start, size, mmap.MADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # cold, as for all others
        madvise(start, size, mmap.MADV_SEQUENTIAL)
        found: Sequence[Tensor] = graph(images)
        return found

    return run


def loaded(contents: Contents, read: bool) -> Half:
    """All weights read at each pass's start; or, without reading, all layers in one place (what is not weights)."""
    blocks = contents.blocks
    starts = [sum(contents.sizes[:index]) if read else 0 for index in range(len(blocks))]
    total = sum(contents.sizes) if read else max(contents.sizes)
    memory, kept = page_aligned(total), page_aligned(contents.kept_bytes)
    places: Places = {}
    end = 0
    for piece in contents.kept:
        places[piece.layer, piece.row] = kept, end
        end += piece.nbytes
    for block, start in zip(blocks, starts, strict=True):
        for piece in block.pieces:
            places[piece.layer, piece.row] = memory, start + piece.offset - block.offset
    file = WeightsFile(contents.path)
    for piece in contents.kept:
        offset = places[piece.layer, piece.row][1]
        file.read(piece.offset, buffer(kept)[offset : offset + piece.nbytes], piece.layer)
    graph = bind(contents, places, Open())
    memory.zero_()  # memory that nobody wrote to takes none
    view = buffer(memory)

    def run(images: Tensor) -> Sequence[Tensor]:
        for block, start in zip(blocks, starts, strict=True) if read else ():
            file.read(block.offset, view[start : start + block.nbytes], block.pieces[0].layer)
        found: Sequence[Tensor] = graph(images)
        return found

    return run


def can_offload() -> bool:
    """True where accelerate is installed."""
    return importlib.util.find_spec("accelerate") is not None


def offloaded(model: SplitModel, folder: Path) -> Half:
    """accelerate's disk offload, layer by layer, of the graph as it is before convolutions are fused.

    The folder is written unless it is there; then the model's own weights are not looked at.
    """
    from accelerate import disk_offload

    partition = backbone_of(model.graph, model.split_point("output"))
    disk_offload(partition, folder, execution_device=torch.device("cpu"), offload_buffers=True)

    def run(images: Tensor) -> Sequence[Tensor]:
        for path in folder.iterdir():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # cold, as for all others
        found: Sequence[Tensor] = partition(images)
        return found

    return run
