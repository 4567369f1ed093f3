"""Starts one model on streamed weights as a node does. The benchmark measures the memory of this process from outside.

    python benchmarks demand_layering.start_child MODEL FILE PASSES

prints three lines, and waits for a line of input after each line:

- ``ready``: libraries are loaded and have allocated the memory that they keep.
- ``first``: the model was loaded from its packed file, and has its first result.
- ``done``: further passes have run.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from benchmarks.demand_layering.child import images_of
from split_infer_ros.runtime.heap import trim
from split_infer_ros.runtime.process import keep_freed_memory
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.streaming import stream_backbone
from split_infer_ros.weight_streaming.weightless_loading import load_streamable


def warm_up() -> None:
    """Runs a small model, so that libraries allocate the memory that they keep."""
    model = load_model(ModelSpec("shapes", "none", "cpu"))
    model.backbone("output")(images_of(model))
    trim()


def tell(word: str) -> None:
    """Prints a word, and waits for a line from the parent process."""
    print(word, flush=True)
    sys.stdin.readline()


@torch.inference_mode()
def main() -> int:
    """Starts the model. Each step waits for a line from the parent process."""
    name, path, passes = sys.argv[1:]
    keep_freed_memory()
    warm_up()
    tell("ready")
    settings = replace(StageSettings(split_point="output"), weights_residency=Residency.TWO_STAGE, weights_file=path)
    model = load_streamable(ModelSpec(name, "random", "cpu"), settings)
    partition = stream_backbone(model, model.split_point("output"), settings, batch_size=1)
    assert partition is not None
    images = images_of(model)
    partition(images)
    tell("first")
    for _ in range(int(passes)):
        partition(images)
    tell("done")
    partition.close()
    return 0
