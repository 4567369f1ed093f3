"""Rivals that run batches of images: a whole model, or a split model. They stay alive between their turns.

A turn consists of several batches in a row. The first batch is a warm-up, and the clock starts with the result of this
batch. A rival may have several batches in flight. It then gets as many extra batches behind the last timed batch. So
its stages are as full when the clock stops as when the clock started, and neither filling nor draining is timed.

A rival's threads end with its turn. A thread that computes on several cores keeps helper threads, and the helpers of
waiting rivals would slow down the rival that runs.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from benchmarks.common.energy import FIGURE, EnergyMeter
from benchmarks.common.turns import rotated
from benchmarks.rivals.head_process import Weights
from benchmarks.rivals.image_feed import Batches, Figures, ImageFeed
from benchmarks.rivals.two_processes import TwoProcessPipeline
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.runtime.cores import ANY_CORES, StageCores
from split_infer_ros.runtime.num_threads import max_threads, run_with_threads
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.server.stage_feeder import STUCK_S
from split_infer_ros.server.timeline import Timeline
from split_infer_ros.split.model import SplitModel

BATCH_TIMEOUT_S = 60.0  # longer than any batch takes to fill

Spans = Sequence[tuple[float, float]]


class Rival(Protocol):
    """One way to run the model on batches, which takes turns with other rivals.

    Attributes:
        feed: gives the rival its batches.
    """

    feed: ImageFeed

    def take_turn(self, num_batches: int, usage: AbstractContextManager[None]) -> Figures:
        """Runs one turn, and returns the figures of the turn by name.

        Args:
            num_batches: how many batches are timed.
            usage: a context in which the batches run. It measures memory and processor time.
        """

    def close(self) -> None:
        """Frees the rival's memory."""


class WholeModel:
    """A rival that does not split the model.

    Args:
        run: runs all batches, and calls its second argument with the detections of each batch.
        feed: gives the rival its batches.
        ahead: how many further batches are in flight when the result of a batch comes.
    """

    def __init__(
        self, run: Callable[[Batches, Callable[[Sequence[Detections]], None]], None], feed: ImageFeed, ahead: int = 0
    ) -> None:
        self.feed = feed
        self._run = run
        self._ahead = ahead

    def take_turn(self, num_batches: int, usage: AbstractContextManager[None]) -> Figures:
        """Runs one turn on all cores. Returns the figures of ``ImageFeed.figures``."""
        with usage:
            run_with_threads(
                max_threads(),
                lambda: self._run(self.feed.batches(1 + num_batches + self._ahead), self.feed.record),
            )
        return self.feed.figures(num_batches)

    def close(self) -> None:
        """Does nothing: the caller owns the memory."""


class SplitPipeline:
    """The package's pipeline at one split point.

    Args:
        model: the model.
        split_point: the name of the split point.
        feed: gives the pipeline its batches.
        limits: the limits that decide which detections are kept.
        ahead: how many further batches are in flight when the result of a batch comes.
        weights: the weights for a head in a process of its own; None for a head in this process.
        lane_limit: how many times as long a batch may take if two are computed side by side; see ``StageSettings``.
        cores: the cores of each stage, in one process. Images are fed from the head's cores.
        one_by_one: whether each batch waits until the results of the batch before have come.

    Attributes:
        feed: gives the pipeline its batches.
        split_point: the name of the split point.
        memory_policy: the memory policy of the pipeline's plan.
        memory_reason: why the plan has that policy.
    """

    def __init__(
        self,
        model: SplitModel,
        *,
        split_point: str,
        feed: ImageFeed,
        limits: Limits,
        ahead: int,
        weights: Weights | None = None,
        lane_limit: float = 1.0,
        cores: StageCores = ANY_CORES,
        one_by_one: bool = False,
    ) -> None:
        self.feed = feed
        self.split_point = split_point
        self._ahead = ahead
        self._cores = cores
        self._one_by_one = one_by_one
        self._has_results = threading.Event()  # of the latest batch, if batches go one by one
        self._batches: list[Batch] = []
        settings = StageSettings(
            split_point=split_point,
            batch_size=feed.batch_size,
            batch_timeout_s=BATCH_TIMEOUT_S,
            drop_policy=DropPolicy.BLOCK,
            lane_limit=lane_limit,
            backbone_cores=str(cores.backbone),
        )
        watch = self._batches.append
        self._pipeline: LocalPipeline | TwoProcessPipeline = (
            LocalPipeline(model, settings, self._deliver, limits=limits, head_cores=cores.head, watch=watch)
            if weights is None
            else TwoProcessPipeline(model, settings, self._deliver, limits=limits, weights=weights, watch=watch)
        )
        report = self._pipeline.backbone.report(time.monotonic())
        self.memory_policy, self.memory_reason = report.memory, report.memory_reason

    def take_turn(self, num_batches: int, usage: AbstractContextManager[None]) -> Figures:
        """Runs one turn. Warming up the backbone at its start is not timed.

        Returns the figures of ``ImageFeed.figures``, and those of ``stage_figures`` for the timed seconds.
        """
        self._batches.clear()
        self._pipeline.head.start()
        self._pipeline.backbone.start()
        try:
            with usage, self._cores.head.bound():
                for images in self.feed.batches(1 + num_batches + self._ahead):
                    self._has_results.clear()
                    self._pipeline.feed(images)
                    if self._one_by_one:
                        self._has_results.wait(BATCH_TIMEOUT_S)  # ``finish`` would notice up to a millisecond later
                self._pipeline.finish()
        finally:
            self._pipeline.backbone.stop(STUCK_S)
            self._pipeline.head.stop()
        span = self.feed.timed_span(num_batches)
        return self.feed.figures(num_batches) | stage_figures(self.timelines, span, num_batches)

    @property
    def timelines(self) -> list[Timeline]:
        """The times of each batch of the last turn."""
        return [batch.timeline for batch in self._batches]

    def close(self) -> None:
        """Frees the slots, and ends the head's process if it has one."""
        if isinstance(self._pipeline, TwoProcessPipeline):
            self._pipeline.close()
        else:
            self._pipeline.backbone.close()

    def _deliver(self, origin: Origin, detections: Detections) -> None:
        self.feed.record([detections])
        if len(self.feed.labels) % self.feed.batch_size == 0:
            self._has_results.set()


def stage_spans(timelines: Sequence[Timeline]) -> dict[str, Spans]:
    """Returns when each stage worked on batches, by its name: ``backbone`` (with pre-processing) or ``head``."""
    slices = [timeline.slices() for timeline in timelines]
    steps = {"backbone": ("preprocess", "backbone"), "head": ("head", "postprocess")}
    return {stage: [each[step] for each in slices for step in its] for stage, its in steps.items()}


def stage_figures(timelines: Sequence[Timeline], span: tuple[float, float], num_batches: int) -> Figures:
    """Returns how long the stages of a pipeline worked in a turn.

    Args:
        timelines: the times of all batches of the turn.
        span: when the clock started and stopped.
        num_batches: how many batches were timed.

    Returns:
        Three figures for each stage. ``backbone_busy`` is the share of the timed seconds in which it worked.
        ``backbone_s`` is its seconds a batch, while both stages work. ``backbone_alone_s`` is its seconds for a batch
        alone: the backbone works alone on the turn's first batch, and the head on the last one. Besides, ``batch_s`` is
        the median time from the closing of a batch until its results are out.
    """
    start, end = span
    spans = stage_spans(timelines)
    alone = {"backbone": spans["backbone"][:2], "head": spans["head"][-2:]}
    figures = {"batch_s": statistics.median(each.delivered - each.closed for each in timelines[1 : num_batches + 1])}
    for stage, its in spans.items():
        worked_s = covered(its, start, end)
        figures |= {
            f"{stage}_busy": worked_s / (end - start),
            f"{stage}_s": worked_s / num_batches,
            f"{stage}_alone_s": sum(until - since for since, until in alone[stage]),
        }
    return figures


def covered(spans: Spans, start: float, end: float) -> float:
    """Returns the seconds between start and end that lie in at least one of the spans."""
    return sum(max(0.0, min(until, end) - max(since, start)) for since, until in merged(spans))


def merged(spans: Spans) -> Spans:
    """Returns the spans in order. Those that touch or overlap become one."""
    found: list[tuple[float, float]] = []
    for since, until in sorted(spans):
        if found and since <= found[-1][1]:
            found[-1] = found[-1][0], max(until, found[-1][1])
        else:
            found.append((since, until))
    return found


def figure_key(rival: str, figure: str) -> str:
    """Returns the key under which a contest stores a rival's figure."""
    return f"{rival}: {figure}"


def figures_of_turns(
    rivals: Mapping[str, Rival],
    number: int,
    num_batches: int,
    *,
    usage_of: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
    energy: EnergyMeter,
) -> Figures:
    """Lets each rival take a turn, in an order that changes with ``number``. Returns the figures by ``figure_key``.

    ``joules_per_image`` is added to a rival's own figures; see ``EnergyMeter``. It is NaN without a sensor.

    Args:
        rivals: the rivals, by name.
        number: the number of the turn, from 0.
        num_batches: how many batches of each rival are timed.
        usage_of: returns the context in which a rival's batches run.
        energy: measures the energy of each turn.
    """
    figures: Figures = {}
    for name in rotated(list(rivals), number):
        of_rival = rivals[name].take_turn(num_batches, energy.around(usage_of(name)))
        of_rival[FIGURE] = energy.joules / of_rival["images"]
        figures |= {figure_key(name, figure): value for figure, value in of_rival.items()}
    return figures
