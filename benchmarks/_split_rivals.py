"""The rivals of the splitting benchmark, which stay alive between their turns.

A turn of a rival is some batches in a row. Its first batch is a warm-up, and the clock starts with that batch's result.
A rival that has several batches under way gets as many behind the last that is timed. So its stages are as full when
the clock stops as they were when it started, and neither the filling nor the draining is timed.

Only the threads end with a turn. Each thread that computes on several cores keeps helpers, and helpers of rivals that
wait would slow down the one that runs.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.pipeline.in_flight import InFlightBatch
from split_infer_ros.pipeline.local import STUCK_S, LocalPipeline
from split_infer_ros.pipeline.settings import BLOCK, StageSettings
from split_infer_ros.runtime.num_threads import max_threads, run_with_threads
from split_infer_ros.split.model import SplitModel

NOTHING = -1  # the best class where a detector finds none
LONG_S = 60.0

Figures = dict[str, float]
Batches = Iterator[Sequence[Pixels]]
Spans = Sequence[tuple[float, float]]


class Rival(Protocol):
    """One configuration."""

    feed: Feed

    def take(self, batches: int, using: AbstractContextManager[None]) -> Figures:
        """Take a turn in which so many batches are timed; ``using`` is entered while frames flow."""

    def close(self) -> None:
        """Free its memory."""


@dataclass
class Feed:
    """Hands out pictures in batches, and notes when their results came and what they were.

    Every turn goes on with the picture at which the last one ended.
    """

    pictures: Sequence[Pixels]
    batch_size: int
    labels: list[int] = field(default_factory=list)
    _taken: list[float] = field(default_factory=list)
    _done: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._endless = itertools.cycle(self.pictures)

    def batches(self, count: int) -> Batches:
        """A turn's batches."""
        self._taken.clear()
        self._done.clear()
        for _ in range(count):
            self._taken.append(time.monotonic())
            yield list(itertools.islice(self._endless, self.batch_size))

    def note(self, found: Sequence[Detections]) -> None:
        """Results of the next batch, or of a part of it."""
        self.labels += [int(detections.labels[0]) if len(detections) else NOTHING for detections in found]
        if len(self.labels) % self.batch_size == 0:
            self._done.append(time.monotonic())

    def timed(self, batches: int) -> tuple[float, float]:
        """When the clock started and stopped: at the first result, and so many batches later."""
        return self._done[0], self._done[batches]

    def figures(self, batches: int) -> Figures:
        """Speed of the batches that were timed, and their median latency from their first picture on."""
        start, end = self.timed(batches)
        times = [done - taken for taken, done in zip(self._taken, self._done, strict=True)]
        return {
            "images_per_s": batches * self.batch_size / (end - start),
            "latency_s": statistics.median(times[1 : batches + 1]),
        }

    def agreement(self, labels: Sequence[int]) -> float:
        """The part of the results that have these labels, one a picture, as far as there are labels."""
        places = (index % len(self.pictures) for index in range(len(self.labels)))
        same = [mine == labels[place] for mine, place in zip(self.labels, places, strict=True) if place < len(labels)]
        return sum(same) / len(same)


class WholeModel:
    """A rival that does not split the model.

    Args:
        run: takes batches until there are no more, and delivers each one's detections.
        feed: where they come from.
        ahead: so many batches more are under way while one is finished.
    """

    def __init__(
        self, run: Callable[[Batches, Callable[[Sequence[Detections]], None]], None], feed: Feed, ahead: int = 0
    ) -> None:
        self.feed = feed
        self._run = run
        self._ahead = ahead

    def take(self, batches: int, using: AbstractContextManager[None]) -> Figures:
        """Take a turn, on all cores."""
        with using:
            run_with_threads(
                max_threads(),
                lambda: self._run(self.feed.batches(1 + batches + self._ahead), self.feed.note),
            )
        return self.feed.figures(batches)

    def close(self) -> None:
        """Whoever made it has its memory."""


class Split:
    """The package's pipeline, split at one split point.

    Args:
        model: that is split.
        cut: the split point.
        feed: where its batches come from.
        limits: what post-processing keeps.
        ahead: so many batches more are under way while one is finished.

    Attributes:
        feed, cut: as given.
        memory: the memory policy that the pipeline's plan runs by.
        memory_reason: why it is that one.
    """

    def __init__(self, model: SplitModel, split_point: str, feed: Feed, limits: Limits, ahead: int) -> None:
        self.feed = feed
        self.split_point = split_point
        self._ahead = ahead
        self._batches: list[InFlightBatch] = []
        settings = StageSettings(split_point, feed.batch_size, LONG_S, BLOCK)
        self._pipeline = LocalPipeline(model, settings, self._note, limits=limits, watch=self._batches.append)
        report = self._pipeline.backbone.report(time.monotonic())
        self.memory, self.memory_reason = report.memory, report.memory_reason

    def take(self, batches: int, using: AbstractContextManager[None]) -> Figures:
        """Take a turn. The start of the backbone, which warms it up, is not timed."""
        self._batches.clear()
        self._pipeline.head.start()
        self._pipeline.backbone.start()
        try:
            with using:
                for pictures in self.feed.batches(1 + batches + self._ahead):
                    self._pipeline.feed(pictures)
                self._pipeline.finish()
        finally:
            self._pipeline.backbone.stop(STUCK_S)
            self._pipeline.head.stop()
        return self.feed.figures(batches) | self._stages(*self.feed.timed(batches))

    def _stages(self, start: float, end: float) -> Figures:
        """The share of the timed seconds in which each stage worked, and how long each takes for a batch alone.

        The turn's first batch has the backbone to itself, and its last batch has the head.
        """
        slices = [batch.timeline.slices() for batch in self._batches]
        backbone = [each[name] for each in slices for name in ("preprocess", "backbone")]
        head = [each[name] for each in slices for name in ("head", "postprocess")]
        return {
            "backbone_busy": covered(backbone, start, end) / (end - start),
            "head_busy": covered(head, start, end) / (end - start),
            "backbone_alone_s": sum(until - since for since, until in backbone[:2]),
            "head_alone_s": sum(until - since for since, until in head[-2:]),
        }

    def close(self) -> None:
        """Free the slots."""
        self._pipeline.backbone.close()

    def _note(self, origin: Origin, detections: Detections) -> None:
        self.feed.note([detections])


def covered(spans: Spans, start: float, end: float) -> float:
    """Seconds between start and end that lie in at least one of the spans."""
    total, reached = 0.0, start
    for since, until in sorted(spans):
        until = min(until, end)
        if until > reached:
            total += until - max(since, reached)
            reached = until
    return total
