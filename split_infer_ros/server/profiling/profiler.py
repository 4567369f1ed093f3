"""Measures the profile of a model: the stages of every split point alone, and the best split points as pipelines.

The times of two stages alone do not tell how much the stages slow each other down. So the pipeline itself runs too. It
first runs at the split point with the best-balanced stages, which shows how much they slow each other down. Then it
runs at the most promising split points, several times, because the speed of a machine varies.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.runtime.cores import ANY_CORES, StageCores
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.planner import next_to_run
from split_infer_ros.split.profile import Profile, ProfilePoint
from split_infer_ros.split.profile_samples import (
    PointSamples,
    ProfilePart,
    make_profile,
)
from split_infer_ros.split.stage_timer import StageTimer

MAX_BATCHES = 500  # the most batches that one run of a pipeline times
BATCH_TIMEOUT_S = 60.0  # longer than any batch takes to fill


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: number of samples of each stage alone.
        warm_up: number of batches that a pipeline runs before batches are timed.
        batches: the fewest batches of a pipeline that are timed.
        seconds: how long a pipeline is timed. It ends after ``MAX_BATCHES`` batches in any case.
        runs: the fewest pipelines that run at each batch size, unless the best split point is known earlier.
        repeats: number of runs after which a split point that is nearly the best is not run again.
        max_s: seconds that the pipelines of one batch size may take in total. After that, further pipelines run only
            until there were ``runs`` of them.
    """

    rounds: int = 3
    warm_up: int = 2
    batches: int = 5
    seconds: float = 0.5
    runs: int = 5
    repeats: int = 3
    max_s: float = 8.0


class Profiler:
    """Measures the times of one model's stages at its split points, alone and in pipelines.

    Args:
        model: the model, on its device.
        image: an image like those of the cameras; a blank one of 640x480 pixels if None.
        limits: what post-processing keeps.
        effort: how much to measure.
        cores: the cores of each stage.
        say: called with each line of progress.

    Attributes:
        model, cores: as given.
        image: as given, or the blank one.
    """

    def __init__(
        self,
        model: SplitModel,
        *,
        image: Pixels | None = None,
        limits: Limits | None = None,
        effort: Effort | None = None,
        cores: StageCores = ANY_CORES,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.model = model
        self.image = image or Pixels.blank()
        self._limits = limits or Limits()
        self._effort = effort or Effort()
        self._say = say
        self.cores = cores
        self._timer = StageTimer(model, image=self.image, limits=self._limits, rounds=self._effort.rounds, cores=cores)
        self._samples: dict[tuple[str, int], PointSamples] = {}  # by split point and batch size

    def measure(self, batch_sizes: Sequence[int]) -> list[PointSamples]:
        """Measures every split point at these batch sizes. Returns the samples of each split point and batch size.

        Raises:
            ConfigurationError: the memory is too small for a batch size.
        """
        self._samples.clear()
        for batch_size in batch_sizes:
            self._say(f"batch {batch_size}: each stage alone")
            with ThreadPoolExecutor(1) as executor:  # the thread's settings and helper threads end with the thread
                alone = executor.submit(self._timer.measure, batch_size)
            self._samples |= {(each.split_point, batch_size): each for each in alone.result()}
        self._run_most_balanced(max(batch_sizes))
        for batch_size in batch_sizes:
            self._run_most_promising(batch_size)
        return list(self._samples.values())

    def _profile(self) -> Profile:
        model = self.model
        return make_profile(
            model=model.entry.name,
            device=str(model.device),
            split_points=model.split_points,
            samples=self._samples.values(),
        )

    def _run_most_balanced(self, batch_size: int) -> None:
        """Runs the pipeline with the most similar stage times, because its stages slow each other down the most."""
        points = [point for point in self._profile().points if point.batch_size == batch_size]
        self._run(min(points, key=lambda point: abs(math.log(point.backbone_stage_s / point.head_stage_s))))

    def _run_most_promising(self, batch_size: int) -> None:
        end = time.monotonic() + self._effort.max_s
        runs: dict[str, int] = {}
        while sum(runs.values()) < self._effort.runs or time.monotonic() < end:
            point = next_to_run(self._profile(), batch_size, runs=runs, repeats=self._effort.repeats)
            if point is None:
                break
            self._run(point)
            runs[point.split_point] = runs.get(point.split_point, 0) + 1

    def _run(self, point: ProfilePoint) -> None:
        """Runs a saturated pipeline at that split point and keeps the time of each batch.

        The fastest of several runs is kept, because a disturbance can only make a run slower.
        """
        self._say(f"batch {point.batch_size}: a pipeline that is split at {point.split_point}")
        size = point.batch_size
        ends: list[float] = []

        def deliver(origin: Origin, detections: Detections) -> None:
            if origin.header % size == size - 1:
                ends.append(time.monotonic())

        effort, slowest_s = self._effort, max(point.backbone_stage_s, point.head_stage_s)
        batches = effort.warm_up + max(effort.batches, min(MAX_BATCHES, round(effort.seconds / slowest_s)))
        settings = StageSettings(
            split_point=point.split_point,
            batch_size=size,
            batch_timeout_s=BATCH_TIMEOUT_S,
            drop_policy=DropPolicy.BLOCK,
            backbone_cores=str(self.cores.backbone),
        )
        head_cores = self.cores.head
        with LocalPipeline(self.model, settings, deliver, limits=self._limits, head_cores=head_cores) as pipeline:
            pipeline.feed(itertools.repeat(self.image, size * batches))
            pipeline.finish()
            report = pipeline.backbone.report(time.monotonic())
        periods = tuple(later - sooner for sooner, later in itertools.pairwise(ends[effort.warm_up - 1 :]))
        run = {
            ProfilePart.PERIOD: periods,
            ProfilePart.BACKBONE_BUSY: (report.preprocess_s + report.backbone_s,),
            ProfilePart.HEAD_BUSY: (report.head_s + report.postprocess_s,),
        }
        before = self._samples[point.split_point, size]
        known = before.parts.get(ProfilePart.PERIOD)
        if known is None or statistics.median(periods) < statistics.median(known):
            self._samples[point.split_point, size] = replace(before, parts={**before.parts, **run})
