"""Rivals that run batches of images: a whole model, or a split model. They stay alive between their turns.

A turn consists of several batches in a row. The first batch is a warm-up, and the clock starts with the result of this
batch. A rival may have several batches in flight. It then gets as many extra batches behind the last timed batch. So
its stages are as full when the clock stops as when the clock started, and neither filling nor draining is timed.

A rival's threads end with its turn. A thread that computes on several cores keeps helper threads, and the helpers of
waiting rivals would slow down the rival that runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from benchmarks.rivals.head_process import Weights
from benchmarks.rivals.image_feed import Batches, Figures, ImageFeed
from benchmarks.rivals.two_processes import TwoProcessPipeline
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.runtime.num_threads import max_threads, run_with_threads
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.server.stage_feeder import STUCK_S
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
    ) -> None:
        self.feed = feed
        self.split_point = split_point
        self._ahead = ahead
        self._batches: list[Batch] = []
        settings = StageSettings(
            split_point=split_point,
            batch_size=feed.batch_size,
            batch_timeout_s=BATCH_TIMEOUT_S,
            drop_policy=DropPolicy.BLOCK,
            lane_limit=lane_limit,
        )
        watch = self._batches.append
        self._pipeline: LocalPipeline | TwoProcessPipeline = (
            LocalPipeline(model, settings, self._deliver, limits=limits, watch=watch)
            if weights is None
            else TwoProcessPipeline(model, settings, self._deliver, limits=limits, weights=weights, watch=watch)
        )
        report = self._pipeline.backbone.report(time.monotonic())
        self.memory_policy, self.memory_reason = report.memory, report.memory_reason

    def take_turn(self, num_batches: int, usage: AbstractContextManager[None]) -> Figures:
        """Runs one turn. Warming up the backbone at its start is not timed.

        Returns the figures of ``ImageFeed.figures``, and two more for each stage. One is the share of the time in which
        the stage worked. The other is the seconds that the stage takes for a batch alone.
        """
        self._batches.clear()
        self._pipeline.head.start()
        self._pipeline.backbone.start()
        try:
            with usage:
                for images in self.feed.batches(1 + num_batches + self._ahead):
                    self._pipeline.feed(images)
                self._pipeline.finish()
        finally:
            self._pipeline.backbone.stop(STUCK_S)
            self._pipeline.head.stop()
        start, end = self.feed.timed_span(num_batches)
        return self.feed.figures(num_batches) | self._stage_figures(start, end)

    def _stage_figures(self, start: float, end: float) -> Figures:
        """Returns the share of the timed seconds in which each stage worked, and how long each takes if it works alone.

        The backbone works alone on the turn's first batch, and the head on the turn's last batch.
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
        """Frees the slots, and ends the head's process if it has one."""
        if isinstance(self._pipeline, TwoProcessPipeline):
            self._pipeline.close()
        else:
            self._pipeline.backbone.close()

    def _deliver(self, origin: Origin, detections: Detections) -> None:
        self.feed.record([detections])


def covered(spans: Spans, start: float, end: float) -> float:
    """Returns the seconds between start and end that lie in at least one of the spans."""
    total, reached = 0.0, start
    for since, until in sorted(spans):
        since, until = max(since, reached), min(until, end)
        if until > since:  # nothing is left of a span behind the end
            total += until - since
            reached = until
    return total
