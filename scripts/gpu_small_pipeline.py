"""Runs a pipeline on the GPU for a few frames.

It is small enough for a tool that makes kernels a hundred times slower.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec

FRAMES = 6


def main(device: str = "cuda:0") -> int:
    """Runs the pipeline; returns 0 if each frame came through."""
    found: list[int] = []

    def deliver(origin: Origin, detections: Detections) -> None:
        found.append(origin.header)

    image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    settings = StageSettings(
        batch_size=2,
        drop_policy=DropPolicy.BLOCK,
        batch_timeout_s=0.01,
        memory_policy="device",  # auto would calibrate the machine first
        cuda_graphs=False,  # their memory needs torch's cache; without the cache, the tool sees more
    )
    with LocalPipeline(load_model(ModelSpec("shapes", "default", device)), settings, deliver) as pipeline:
        pipeline.feed(itertools.repeat(Pixels(image, (2, 1, 0)), FRAMES))
        pipeline.finish()
    print(f"{len(found)} of {FRAMES} frames came through.")
    return 0 if found == list(range(FRAMES)) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
