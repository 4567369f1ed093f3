"""Starts a model on streamed weights as a node does, and measures the memory of this process.

`weightless_start.py MODEL RESIDENCY` first prints whether the model started whole or weightless. Then it prints JSON:

- ``start_bytes``: the peak of memory from loading the model to the first result.
- ``steady_bytes``: the peak of later passes. Both peaks leave out what the process had before.
- ``weight_bytes``: the bytes of the model's weights.
- ``logits``: the logits of the first image.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import torch
from networks import graph_of
from torch import Tensor

from split_infer_ros.runtime.heap import trim
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.streaming import stream_backbone
from split_infer_ros.weight_streaming.weightless_loading import load_streamable

BATCH, STEADY_PASSES = 16, 2


def peak_bytes() -> int:
    """Returns the peak of this process's memory in bytes, since its start or the last ``forget_peak``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def forget_peak() -> int:
    """Lets ``peak_bytes`` return the peak since now. Returns the bytes that the process has now."""
    gc.collect()
    trim()
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def images_of(side: int) -> Tensor:
    """Returns ``BATCH`` images of noise, float32 (BATCH, 3, side, side), in channels last."""
    images = torch.rand(BATCH, 3, side, side, generator=torch.Generator().manual_seed(0))
    return images.contiguous(memory_format=torch.channels_last)


def start(name: str, residency: str) -> tuple[SplitModel, StreamedPartition]:
    """Loads a model, and streams the weights of its backbone, which is the whole model."""
    settings = StageSettings(split_point="output", batch_size=BATCH, weights_residency=Residency(residency))
    model = load_streamable(ModelSpec(name, "none", "cpu"), settings)
    is_weightless = all(tensor.untyped_storage().nbytes() < 16 for tensor in state_of(graph_of(model)).values())
    print(f"{name} is {'weightless' if is_weightless else 'whole'}", flush=True)
    partition = stream_backbone(model, model.split_point("output"), settings, batch_size=settings.batch_size)
    assert partition is not None
    return model, partition


@torch.inference_mode()
def main(name: str, residency: str) -> None:
    """Measures one model in one residency."""
    prepare_process()
    small, partition = start("shapes", residency)  # libraries then have what they keep for themselves
    partition(images_of(small.entry.preprocess.height))
    partition.close()
    images = images_of(224)
    base = forget_peak()
    model, partition = start(name, residency)
    logits = partition(images)[0][0].tolist()
    start_bytes = peak_bytes() - base
    forget_peak()
    for _ in range(STEADY_PASSES):
        partition(images)
    steady_bytes = peak_bytes() - base
    partition.close()
    weight_bytes = sum(tensor.nbytes for tensor in state_of(graph_of(model)).values())
    found = {"start_bytes": start_bytes, "steady_bytes": steady_bytes, "weight_bytes": weight_bytes, "logits": logits}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
