"""One model with its weights in one way, in a process of its own whose memory is looked at from outside.

`_layering_child.py MODEL FILE WAY PASSES [PLACEMENT]` says ``ready`` when all but weights is there, ``open`` with
what the way needs, and ``done`` with the passes behind it; each time it waits for a line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _hollow_model import hollow_model
from _layering_rivals import Half, loaded, mapped, offloaded
from torch import Tensor

from split_infer_ros.runtime.heap import trim
from split_infer_ros.split.graph import set_state, state_of
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import backbone_of
from split_infer_ros.weight_streaming.partition_weights import Contents, open_contents
from split_infer_ros.weight_streaming.residency import RESIDENT, place
from split_infer_ros.weight_streaming.ring import circular
from split_infer_ros.weight_streaming.ring_memory import buffer, page_aligned
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.unpack import unpack
from split_infer_ros.weight_streaming.weights_file import WeightsFile

MAPPED, WHOLE, OFFLOADED, NOTHING, CHOSEN = "mmap", "whole load", "accelerate", "nothing", "auto"


def images_of(model: SplitModel) -> Tensor:
    """One image of noise."""
    images = torch.rand(1, *model.entry.image_shape, generator=torch.Generator().manual_seed(0))
    return images.contiguous(memory_format=torch.channels_last)


def contents_of(model: SplitModel, path: Path) -> Contents:
    """What the whole model reads."""
    return open_contents(model, backbone_of(model.graph, model.split_point("output")), path, torch.get_num_threads())


def make(model: SplitModel, path: Path, way: str, placement: tuple[int, int] = (0, 0)) -> Half:
    """The whole model with its weights in that way.

    Args:
        model: whose own weights are not looked at, unless they are to be resident.
        path: of the packed weights.
        way: ``resident``; ``mmap``: pages come from the file as they are touched, and are dropped after each pass;
            ``whole load``: all weights are read at each pass's start; ``accelerate``: its disk offload;
            ``nothing``: all layers lie in one place and
            nothing is read; ``auto``: as placed; or a residency.
        placement: blocks that stay, and bytes of the ring; for ``auto``.
    """
    if way == RESIDENT:
        state = state_of(model.graph)
        set_state(model.graph, unpack(model, path, torch.get_num_threads(), state.keys()))
        return model.backbone("output")
    if way == OFFLOADED:
        return offloaded(model, path.with_suffix(".offloaded"))
    contents = contents_of(model, path)
    if way == MAPPED:
        return mapped(contents)
    if way in (WHOLE, NOTHING):
        return loaded(contents, read=way == WHOLE)
    if way == CHOSEN:
        resident, capacity = placement
        rest = [block - resident if block >= resident else -1 for block in contents.uses]
        return StreamedPartition(contents, circular(contents.sizes[resident:], rest, capacity), resident)
    return StreamedPartition(contents, place(way, contents.sizes, contents.uses).plan)


def reading(contents: Contents) -> Callable[[], None]:
    """What reads all weights once, past the page cache, into one place."""
    file, memory = WeightsFile(contents.path), buffer(page_aligned(max(contents.sizes)))

    def run() -> None:
        for block in contents.blocks:
            file.read(block.offset, memory[: block.nbytes], block.pieces[0].layer)

    return run


def main() -> int:
    """Run a way, told by the parent."""
    name, path, way, passes, *more = sys.argv[1:]
    placement: Any = tuple(map(int, more))
    model = hollow_model(name)
    images = images_of(model)
    print("ready", flush=True)
    sys.stdin.readline()
    partition = make(model, Path(path), way, placement)
    trim()
    print("open", flush=True)
    sys.stdin.readline()
    times = []
    with torch.inference_mode():
        for _ in range(int(passes)):
            start = time.perf_counter()
            partition(images)
            times.append(time.perf_counter() - start)
    print("done", json.dumps(times), flush=True)
    sys.stdin.readline()
    return 0


if __name__ == "__main__":
    sys.exit(main())
