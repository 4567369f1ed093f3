"""One model with its weights in one way, in a process of its own whose memory is looked at from outside.

`_layering_child.py MODEL FILE WAY PASSES [PLACEMENT]` says ``ready`` when all but weights is there, ``open`` with
what the way needs, and ``done`` with the passes behind it; each time it waits for a line.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from split_infer_ros.layering.contents import Contents, open_contents
from split_infer_ros.layering.heap import trim
from split_infer_ros.layering.home import buffer, page_aligned
from split_infer_ros.layering.residency import RESIDENT, place
from split_infer_ros.layering.ring import circular
from split_infer_ros.layering.streamed import Places, StreamedHalf, bind
from split_infer_ros.layering.unpack import unpack
from split_infer_ros.layering.weights_file import WeightsFile
from split_infer_ros.split.graph import put, state_of
from split_infer_ros.split.halves import backbone_of
from split_infer_ros.split.model import SplitModel, hollow_model

MAPPED, WHOLE, NOTHING, CHOSEN = "mmap", "whole load", "nothing", "auto"
Half = Callable[[Tensor], Sequence[Tensor]]


class Open:
    """A gate that waits for nothing."""

    def begin(self, step: int) -> None:
        """A step begins."""

    def end(self, step: int) -> None:
        """A step ends."""


def images_of(model: SplitModel) -> Tensor:
    """One image of noise."""
    images = torch.rand(1, *model.entry.image_shape, generator=torch.Generator().manual_seed(0))
    return images.contiguous(memory_format=torch.channels_last)


def contents_of(model: SplitModel, path: Path) -> Contents:
    """What the whole model reads."""
    return open_contents(model, backbone_of(model.graph, model.cut("output")), path, torch.get_num_threads())


def make(model: SplitModel, path: Path, way: str, placement: tuple[int, int] = (0, 0)) -> Half:
    """The whole model with its weights in that way.

    Args:
        model: whose own weights are not looked at, unless they are to be resident.
        path: of the packed weights.
        way: ``resident``; ``mmap``: pages come from the file as they are touched, and are dropped after each pass;
            ``whole load``: all weights are read at each pass's start; ``nothing``: all layers lie in one place and
            nothing is read; ``auto``: as placed; or a residency.
        placement: blocks that stay, and bytes of the ring; for ``auto``.
    """
    if way == RESIDENT:
        state = state_of(model.graph)
        put(model.graph, unpack(model, path, torch.get_num_threads(), state.keys()))
        return model.backbone("output")
    contents = contents_of(model, path)
    if way == MAPPED:
        return _mapped(contents)
    if way in (WHOLE, NOTHING):
        return _loaded(contents, read=way == WHOLE)
    if way == CHOSEN:
        resident, capacity = placement
        rest = [block - resident if block >= resident else -1 for block in contents.uses]
        return StreamedHalf(contents, circular(contents.sizes[resident:], rest, capacity), resident)
    return StreamedHalf(contents, place(way, contents.sizes, contents.uses).plan)


def reading(contents: Contents) -> Callable[[], None]:
    """What reads all weights once, past the page cache, into one place."""
    file, memory = WeightsFile(contents.path), buffer(page_aligned(max(contents.sizes)))

    def run() -> None:
        for block in contents.blocks:
            file.read(block.offset, memory[: block.nbytes], block.pieces[0].layer)

    return run


def _mapped(contents: Contents) -> Half:
    descriptor = os.open(contents.path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    view = torch.frombuffer(memory, dtype=torch.uint8)
    places = {(piece.layer, piece.row): (view, piece.offset) for piece in contents.header.pieces}
    graph = bind(contents, places, Open())
    madvise, start = ctypes.CDLL(None).madvise, view.data_ptr()
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def run(images: Tensor) -> Sequence[Tensor]:
        madvise(start, size, mmap.MADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # cold, as for all others
        found: Sequence[Tensor] = graph(images)
        return found

    return run


def _loaded(contents: Contents, read: bool) -> Half:
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


def main() -> int:
    """Run a way, told by the parent."""
    name, path, way, passes, *more = sys.argv[1:]
    placement: Any = tuple(map(int, more))
    model = hollow_model(name)
    images = images_of(model)
    print("ready", flush=True)
    sys.stdin.readline()
    half = make(model, Path(path), way, placement)
    trim()
    print("open", flush=True)
    sys.stdin.readline()
    times = []
    with torch.inference_mode():
        for _ in range(int(passes)):
            start = time.perf_counter()
            half(images)
            times.append(time.perf_counter() - start)
    print("done", json.dumps(times), flush=True)
    sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
