"""Measures the profile of a model: every split point's stages alone, and the best split points as a pipeline.

Timing each split point's partitions by themselves would run the model once a split point. Instead the model runs in
pieces, from one split point to the next, once as the backbone and once as the head runs it; the pieces before a split
point make its backbone, those behind it its
head. What two stages do to each other depends on much that no sum of times tells. So the pipeline itself is run: where
the stages are best balanced, for how much they slow each other down, and at the most promising split points, for a
machine is slower at one time than at another.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.pipeline.local import LocalPipeline
from split_infer_ros.pipeline.preprocessor import make_preprocessor
from split_infer_ros.pipeline.settings import BLOCK, StageSettings
from split_infer_ros.runtime.num_threads import use_all_threads, use_one_thread
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.runtime.timing import Lap, Stopwatch
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.planner import worth_a_run
from split_infer_ros.split.profile import Profile, ProfilePoint
from split_infer_ros.split.profile_samples import (
    BACKBONE,
    BACKBONE_BUSY,
    DECODE,
    HAND_OVER,
    HEAD,
    HEAD_BUSY,
    PERIOD,
    PREPROCESS,
    Samples,
    make_profile,
)

MOST_BATCHES = 500
LONG_S = 60.0


def ignore(line: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: samples of each stage alone.
        warm_up: batches of a pipeline before any is timed.
        batches: of a pipeline that are timed, at least.
        seconds: for which a pipeline is timed, as far as 500 batches go.
        runs: of pipelines a batch size, at least, unless the best split point is known before.
        repeats: runs of each split point that is nearly the best, after which it is known.
        most_s: when these seconds of a batch size's runs are over there are no more than ``runs``.
    """

    rounds: int = 3
    warm_up: int = 2
    batches: int = 5
    seconds: float = 0.5
    runs: int = 5
    repeats: int = 3
    most_s: float = 8.0


class Profiler:
    """Measures one model.

    Args:
        model: on its device.
        picture: what the cameras send; unless said otherwise a blank one of 640x480 pixels.
        limits: what post-processing keeps.
        effort: how much to measure.
        say: told what is being done, a line at a time.
    """

    def __init__(
        self,
        model: SplitModel,
        picture: Pixels | None = None,
        limits: Limits | None = None,
        effort: Effort | None = None,
        say: Callable[[str], object] = ignore,
    ) -> None:
        self._model = model
        self._picture = picture or Pixels.blank()
        self._limits = limits or Limits()
        self._effort = effort or Effort()
        self._say = say
        self._place = Place(Policy.DEVICE, model.device)  # what is legal everywhere; on a CPU it is plain memory
        self._samples: dict[tuple[str, int], Samples] = {}

    def measure(self, batch_sizes: Sequence[int]) -> list[Samples]:
        """Measure every split point at these batch sizes.

        Raises:
            ConfigurationError: a batch size is too large for the memory.
        """
        self._samples.clear()
        for batch_size in batch_sizes:
            self._say(f"batch {batch_size}: each stage alone")
            with ThreadPoolExecutor(1) as executor:  # its choice of cores, and its team for them, end with it
                alone = executor.submit(self._stages_alone, batch_size)
            try:
                self._samples |= {(found.split_point, batch_size): found for found in alone.result()}
            except torch.OutOfMemoryError as error:
                raise ConfigurationError(
                    f"{self._model.entry.name} cannot be measured at batch size {batch_size}: {self._model.device} has "
                    f"not the memory ({str(error).partition('.')[0]}); leave out the largest batch sizes."
                ) from error
        self._run_the_balanced(max(batch_sizes))
        for batch_size in batch_sizes:
            self._run_the_promising(batch_size)
        return list(self._samples.values())

    def _stages_alone(self, batch_size: int) -> list[Samples]:
        model, split_points = self._model, self._model.split_points
        stream, watch = Stream(model.device), Stopwatch(model.device)
        preprocessor = make_preprocessor(model.entry.preprocess, batch_size, model.dtype, self._place)
        backbone_pieces, head_pieces = model.segments()

        def prepare() -> Tensor:
            loaded = preprocessor.load([self._picture] * batch_size)
            loaded.ready.wait()
            return loaded.images

        with torch.inference_mode(), stream.work("profile"):
            use_one_thread()  # as in the pipeline
            to_input = [_timed(prepare, stream) for _ in range(1 + self._effort.rounds)]
            images = prepare()
            use_all_threads()
            backbones = [_chain(backbone_pieces, (images,), watch)[1] for _ in range(1 + self._effort.rounds)]
            copies = self._hand_overs(backbone_pieces, images, batch_size, watch)
        if model.device.type == "cpu":
            use_one_thread()
        with torch.inference_mode():
            head_watch = Stopwatch(torch.device("cpu"))
            runs = [_chain(head_pieces, (images.cpu().float(),), head_watch) for _ in range(1 + self._effort.rounds)]
            outputs = model.head(split_points[-1].name)(*runs[-1][0])
            decodes = [head_watch.time(lambda: self._decode(outputs)) for _ in range(1 + self._effort.rounds)]
        return [
            Samples(
                split_point.name,
                batch_size,
                {
                    PREPROCESS: tuple(to_input[1:]),
                    BACKBONE: tuple(sum(times[:index]) for times in backbones[1:]),
                    HAND_OVER: copies[index],
                    HEAD: tuple(sum(times[index:]) for _, times in runs[1:]),
                    DECODE: tuple(decodes[1:]),
                },
            )
            for index, split_point in enumerate(split_points)
        ]

    def _hand_overs(
        self, pieces: Sequence[nn.Module], images: Tensor, batch_size: int, watch: Stopwatch
    ) -> list[tuple[float, ...]]:
        """Of each split point, the times of copying what crosses into a slot."""
        found = []
        crossing: tuple[Tensor, ...] = (images,)
        for split_point, piece in itertools.zip_longest(self._model.split_points, pieces):
            slots = SlotMemory.make(Layout(split_point.tensors, batch_size), 1, self._place)

            def copy(slots: SlotMemory = slots, tensors: tuple[Tensor, ...] = crossing) -> None:
                slots.write(0, tensors)
                if slots.copies:
                    slots.fetch(0, batch_size)

            found.append(tuple(watch.time(copy) for _ in range(1 + self._effort.rounds))[1:])
            if piece is not None:
                crossing = piece(*crossing)
        return found

    def _decode(self, outputs: tuple[Tensor, ...]) -> list[Tensor]:
        preprocess, picture = self._model.entry.preprocess, self._picture
        found = self._model.entry.decode(outputs, self._limits)
        return [preprocess.to_source(detections.boxes, picture.height, picture.width) for detections in found]

    def _profile(self) -> Profile:
        model = self._model
        return make_profile(model.entry.name, str(model.device), model.split_points, self._samples.values())

    def _run_the_balanced(self, batch_size: int) -> None:
        """Where neither stage is much longer than the other they slow each other down the most."""
        points = [point for point in self._profile().points if point.batch_size == batch_size]
        self._run(min(points, key=lambda point: abs(math.log(point.backbone_stage_s / point.head_stage_s))))

    def _run_the_promising(self, batch_size: int) -> None:
        end = time.monotonic() + self._effort.most_s
        runs: dict[str, int] = {}
        while sum(runs.values()) < self._effort.runs or time.monotonic() < end:
            point = worth_a_run(self._profile(), batch_size, runs, self._effort.repeats)
            if point is None:
                break
            self._run(point)
            runs[point.split_point] = runs.get(point.split_point, 0) + 1

    def _run(self, point: ProfilePoint) -> None:
        """Run the pipeline there, saturated, and note how long a batch takes."""
        self._say(f"batch {point.batch_size}: a pipeline cut at {point.split_point}")
        size = point.batch_size
        ends: list[float] = []

        def deliver(origin: Origin, detections: Detections) -> None:
            if origin.header % size == size - 1:
                ends.append(time.monotonic())

        effort, slowest_s = self._effort, max(point.backbone_stage_s, point.head_stage_s)
        batches = effort.warm_up + max(effort.batches, min(MOST_BATCHES, round(effort.seconds / slowest_s)))
        settings = StageSettings(point.split_point, size, LONG_S, BLOCK)
        with LocalPipeline(self._model, settings, deliver, limits=self._limits) as pipeline:
            pipeline.feed(itertools.repeat(self._picture, size * batches))
            pipeline.finish()
            report = pipeline.backbone.report(time.monotonic())
        periods = tuple(later - sooner for sooner, later in itertools.pairwise(ends[effort.warm_up - 1 :]))
        whole = {
            PERIOD: periods,
            BACKBONE_BUSY: (report.preprocess_s + report.backbone_s,),
            HEAD_BUSY: (report.head_s + report.postprocess_s,),
        }
        before = self._samples[point.split_point, size]
        more = {part: before.parts.get(part, ()) + costs for part, costs in whole.items()}
        self._samples[point.split_point, size] = replace(before, parts={**before.parts, **more})


def _chain(
    pieces: Sequence[nn.Module], inputs: tuple[Tensor, ...], watch: Stopwatch
) -> tuple[tuple[Tensor, ...], list[float]]:
    """Run pieces one after the other; returns what the last one gives, and each one's seconds."""

    def run(lap: Lap) -> tuple[Tensor, ...]:
        values = inputs
        for piece in pieces:
            values = piece(*values)
            lap()
        return values

    return watch.laps(run)


def _timed(work: Callable[[], object], stream: Stream) -> float:
    """Seconds of work of which the host has a part, from its begin until the device has done it."""
    start = time.perf_counter()
    work()
    stream.fence().wait()
    return time.perf_counter() - start
