"""Runs frames through a pipeline with its backbone on a GPU, and compares the scores with those on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from real_gpu import GPU

from split_infer_ros.images.encodings import BGR, Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.device_pixels import resize_into
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.split.load import build_model, load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_network import TorchNetwork

CPU = torch.device("cpu")
SIZES = ((480, 640), (480, 640), (1080, 1920), (240, 320))
EVERYTHING = Limits(score_threshold=0.0, nms_threshold=1.0, max_detections=1000)
BEST = 5  # scores of a frame that are compared
SETTINGS = StageSettings(batch_size=4, drop_policy=DropPolicy.BLOCK, batch_timeout_s=0.01, memory_policy="device")
# Two processors sum in other orders. Scores lie between 0 and 1, so the bound is absolute.
TOLERANCE = 2e-3

Scores = dict[int, NDArray[np.float32]]


def picture(number: int, size: tuple[int, int] | None = None) -> Pixels:
    """Returns frame ``number``, random noise that is the same at each call. By default, the number decides its size."""
    height, width = size or SIZES[number % len(SIZES)]
    random = np.random.default_rng(number)
    return Pixels(random.integers(0, 256, (height, width, 3), np.uint8), BGR)


class _LikeGpuPreprocess(Preprocess):
    """Resizes on the CPU as a GPU does: in floating point, and rounded once.

    A CPU usually resizes with integer weights. A quarter of all pixels can then differ by one grey level, which changes
    scores by more than ``TOLERANCE``.
    """

    def gather(self, images: Sequence[Pixels], staging: NDArray[Any]) -> NDArray[Any]:
        for image, target in zip(images, torch.from_numpy(staging), strict=False):
            resize_into(self, target[None], torch.from_numpy(image.data)[None], image.rgb)
        return staging[: len(images)]


@contextmanager
def running(settings: StageSettings, model: SplitModel | None = None) -> Iterator[tuple[LocalPipeline, Scores]]:
    """Yields a pipeline, and the best scores of each frame that came through so far.

    Scores are stored by the number of the frame in the order of feeding. Without a model, the pipeline runs the shapes
    detector with its backbone on the GPU.
    """
    scores: Scores = {}

    def deliver(origin: Origin, detections: Detections) -> None:
        scores[origin.header] = detections.scores[:BEST].copy()

    model = model or load_model(ModelSpec("shapes", "default", str(GPU)))
    with LocalPipeline(model, settings, deliver, limits=EVERYTHING) as pipeline:
        yield pipeline, scores


@cache
def cpu_model() -> SplitModel:
    """Returns the shapes detector on the CPU. It resizes images as a GPU does."""
    entry, module = build_model(ModelSpec("shapes", "default"))
    assert isinstance(module, torch.nn.Module)
    values = {field.name: getattr(entry.preprocess, field.name) for field in fields(Preprocess)}
    return SplitModel(TorchNetwork(replace(entry, preprocess=_LikeGpuPreprocess(**values)), module))


@cache
def expected_scores(number: int, size: tuple[int, int] | None = None) -> NDArray[np.float32]:
    """Returns the best scores of frame ``number``, computed by ``cpu_model``."""
    with running(replace(SETTINGS, batch_size=1), model=cpu_model()) as (pipeline, scores):
        pipeline.feed([picture(number, size)])
        pipeline.finish()
    return scores[0]


def check_scores(scores: Scores, sizes: dict[int, tuple[int, int]] | None = None, tolerance: float = TOLERANCE) -> None:
    """Asserts that the best scores of each frame equal those on the CPU.

    Args:
        scores: the best scores of each frame, by its number.
        sizes: sizes of frames, (height, width) by number; without an entry, the size of ``picture``.
        tolerance: how far two scores may be apart.
    """
    for number, found in scores.items():
        size = (sizes or {}).get(number)
        np.testing.assert_allclose(found, expected_scores(number, size), rtol=0, atol=tolerance)
