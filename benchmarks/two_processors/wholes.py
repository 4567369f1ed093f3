"""Rivals that do not split the model, and are more than one pipeline: as built, and two lanes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch

from benchmarks.rivals.as_built import Baseline
from benchmarks.rivals.image_feed import Figures, ImageFeed
from benchmarks.rivals.pipelines import SplitPipeline, WholeModel
from benchmarks.two_processors.subject import Subject
from split_infer_ros.runtime.num_threads import use_one_thread

SUMMED = ("images_per_s", "images")  # figures of lanes that add up


class AsBuilt:
    """The model as built, one batch after another. The accelerator only runs the model; all else is the host's work.

    Args:
        subject: the model.
        batch_size: images per batch.

    Attributes:
        feed: gives the rival its batches.
    """

    def __init__(self, subject: Subject, batch_size: int) -> None:
        self.feed = ImageFeed(subject.images, batch_size)
        cores = subject.processors.stages
        self._host = cores.head
        self._accelerator = ThreadPoolExecutor(1)
        with cores.backbone.bound():  # the executor's thread inherits the cores
            self._accelerator.submit(use_one_thread).result()
        cpu = torch.device("cpu")
        baseline = Baseline(subject.entry, subject.module, cpu, subject.limits, self._accelerator)
        self._whole = WholeModel(baseline.run, self.feed)

    def take_turn(self, num_batches: int, usage: AbstractContextManager[None]) -> Figures:
        """Runs one turn. Returns the figures of ``ImageFeed.figures``."""
        with self._host.bound():
            return self._whole.take_turn(num_batches, usage)

    def close(self) -> None:
        """Ends the accelerator's thread."""
        self._accelerator.shutdown()


class TwoLanes:
    """Two pipelines that run at the same time, each on a processor of its own. They share the images.

    Args:
        lanes: the pipelines.

    Attributes:
        feed: gives the first pipeline its batches.
    """

    def __init__(self, lanes: Sequence[SplitPipeline]) -> None:
        self.feed = lanes[0].feed
        self._lanes = lanes

    def take_turn(self, num_batches: int, usage: AbstractContextManager[None]) -> Figures:
        """Runs one turn of all pipelines, each of ``num_batches`` batches. Returns the figures of ``together``."""
        with usage, ThreadPoolExecutor(len(self._lanes)) as threads:
            return together(list(threads.map(lambda lane: lane.take_turn(num_batches, nullcontext()), self._lanes)))

    def close(self) -> None:
        """Frees the pipelines' memory."""
        for lane in self._lanes:
            lane.close()


def together(lanes: Sequence[Figures]) -> Figures:
    """Returns the figures of pipelines that run at the same time: sums of ``SUMMED``, and means of the rest."""
    return {name: sum(lane[name] for lane in lanes) / (1 if name in SUMMED else len(lanes)) for name in lanes[0]}
