"""What each split point of a model costs on this machine, and how fast a pipeline of two stages is at each of them.

The backbone stage consists of pre-processing, the backbone, and the copy of its features into the slot. While it works
on one batch, the head stage (head and decoding) works on the batch before. If the two stages share cores, each slows
the other down.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from split_infer_ros.errors import ConfigurationError

MIN_RATE = 0.05  # whatever a measurement says, no stage is slower than this part of its speed alone


@dataclass(frozen=True, slots=True)
class StageContention:
    """The rates at which both stages work while they run at the same time. A stage alone works at rate 1.

    If each stage has a processor of its own, both rates are 1. If the stages take turns on one processor, the sum of
    the rates is 1.

    Attributes:
        backbone: rate of the backbone stage.
        head: rate of the head stage.
    """

    backbone: float = 1.0
    head: float = 1.0

    def busy_s(self, backbone_s: float, head_s: float) -> tuple[float, float]:
        """Returns the seconds that a batch takes in each stage while the pipeline is saturated.

        The longer of the two is the pipeline's period.

        Args:
            backbone_s, head_s: seconds that a batch takes in each stage alone.
        """
        backbone = min(backbone_s / self.backbone, backbone_s + head_s * (1 - self.backbone) / self.head)
        head = min(head_s / self.head, head_s + backbone_s * (1 - self.head) / self.backbone)
        return backbone, head

    def alone_s(self, backbone_s: float, head_s: float, period_s: float) -> tuple[float, float]:
        """Returns the seconds that a batch would take in each stage alone: the inverse of ``busy_s``.

        Args:
            backbone_s, head_s: seconds that a batch took in each stage of a running pipeline.
            period_s: seconds between two batches. If too few frames come, it is longer than each stage's time.
        """
        overlap_s = min(max(backbone_s + head_s - period_s, 0.0), backbone_s, head_s)
        return backbone_s - overlap_s * (1 - self.backbone), head_s - overlap_s * (1 - self.head)

    @classmethod
    def from_times(cls, alone_s: tuple[float, float], busy_s: tuple[float, float]) -> StageContention:
        """Returns the rates that explain how much longer the stages take in a saturated pipeline than alone.

        Each rate is at least ``MIN_RATE`` and at most 1.

        Args:
            alone_s: seconds that a batch takes in the backbone stage and in the head stage, each alone.
            busy_s: seconds that a batch takes in both stages of a saturated pipeline, in the same order. There the
                longer stage always works, so the shorter stage never works alone.
        """
        overlap_s = min(busy_s)

        def rate(stage_alone_s: float, stage_busy_s: float) -> float:
            measured = 1 - (stage_busy_s - stage_alone_s) / overlap_s if overlap_s > 0 else 1.0
            return min(1.0, max(MIN_RATE, measured))

        return cls(backbone=rate(alone_s[0], busy_s[0]), head=rate(alone_s[1], busy_s[1]))


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """What one split point costs at one batch size. Times are seconds a batch, each measured alone.

    Attributes:
        split_point: the name of the split point.
        batch_size: images a batch.
        bytes_per_image: bytes that cross for one image.
        preprocess_s: from pixels to the model's input.
        backbone_s: the backbone partition.
        hand_over_s: the copy of the features into the slot.
        head_s: the head partition.
        decode_s: from outputs to detections in the source's pixels.
        period_s: seconds between two batches of the whole pipeline when it is saturated; NaN if not measured.
    """

    split_point: str
    batch_size: int
    bytes_per_image: int
    preprocess_s: float
    backbone_s: float
    hand_over_s: float
    head_s: float
    decode_s: float
    period_s: float = math.nan

    @property
    def backbone_stage_s(self) -> float:
        """Seconds a batch of the backbone stage alone."""
        return self.preprocess_s + self.backbone_s + self.hand_over_s

    @property
    def head_stage_s(self) -> float:
        """Seconds a batch of the head stage alone."""
        return self.head_s + self.decode_s

    def scaled(self, backbone: float, head: float) -> ProfilePoint:
        """Returns this point with each stage slower by a factor. The period becomes NaN.

        Args:
            backbone: the factor for the times of the backbone stage.
            head: the factor for the times of the head stage.
        """
        return replace(
            self,
            preprocess_s=self.preprocess_s * backbone,
            backbone_s=self.backbone_s * backbone,
            hand_over_s=self.hand_over_s * backbone,
            head_s=self.head_s * head,
            decode_s=self.decode_s * head,
            period_s=math.nan,
        )

    def towards(self, larger: ProfilePoint, share: float, batch_size: int) -> ProfilePoint:
        """Returns a point between this one and one of a larger batch size, by linear interpolation. Its period is NaN.

        Args:
            larger: a point of the same split point at a larger batch size.
            share: the part of the way to the larger point, from 0 to 1.
            batch_size: the batch size of the point between.
        """
        names = ("preprocess_s", "backbone_s", "hand_over_s", "head_s", "decode_s")
        times = {name: (1 - share) * getattr(self, name) + share * getattr(larger, name) for name in names}
        return replace(self, batch_size=batch_size, period_s=math.nan, **times)


@dataclass(frozen=True)
class Profile:
    """What every split point of a model costs at several batch sizes.

    Attributes:
        model: the model's name.
        device: where the backbone ran.
        points: ordered by batch size, then in the order of the split points.
        contention: how much the stages slow each other down.
    """

    model: str
    device: str
    points: tuple[ProfilePoint, ...]
    contention: StageContention

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes that were measured, ascending."""
        return tuple(sorted({point.batch_size for point in self.points}))

    def point(self, split_point: str, batch_size: int) -> ProfilePoint | None:
        """Returns the point of that split point and batch size; None if it was not measured."""
        return self._points_by_key.get((split_point, batch_size))

    def estimate(self, split_point: str, num_images: int) -> ProfilePoint | None:
        """Returns what a batch of ``num_images`` images costs at a split point.

        It is interpolated between the two nearest batch sizes that were measured there. Returns None if all measured
        batch sizes are larger, or all are smaller.
        """
        points = [point for point in self.points if point.split_point == split_point]
        size_of = attrgetter("batch_size")
        below = max((point for point in points if point.batch_size <= num_images), key=size_of, default=None)
        above = min((point for point in points if point.batch_size >= num_images), key=size_of, default=None)
        if below is None or above is None or below.batch_size == num_images:
            return below if above is not None else None
        share = (num_images - below.batch_size) / (above.batch_size - below.batch_size)
        return below.towards(above, share, num_images)

    def period_s(self, point: ProfilePoint) -> float:
        """Returns the seconds between two batches of a saturated pipeline: measured, or else predicted."""
        return self.predicted_s(point) if math.isnan(point.period_s) else point.period_s

    def predicted_s(self, point: ProfilePoint) -> float:
        """Returns the seconds between two batches as predicted from the stages' times.

        The median error at measured points of the same batch size corrects the prediction.
        """
        return self._modelled_s(point) * self._corrections.get(point.batch_size, 1.0)

    def throughput(self, point: ProfilePoint) -> float:
        """Returns the images a second of a saturated pipeline."""
        return point.batch_size / self.period_s(point)

    def latency_s(self, point: ProfilePoint) -> float:
        """Returns the seconds from the closing of a batch until its results are out, as predicted.

        The prediction assumes that both stages are busy, and that no batch waits for a slot.
        """
        return sum(self.contention.busy_s(point.backbone_stage_s, point.head_stage_s))

    def without_periods(self) -> Profile:
        """Returns a profile without measured periods that predicts the same as this one.

        The stages' times are scaled so that they predict the measured periods.
        """

        def rescaled(point: ProfilePoint) -> ProfilePoint:
            factor = self.period_s(point) / self._modelled_s(point)
            return point.scaled(factor, factor)

        return replace(self, points=tuple(map(rescaled, self.points)))

    def _modelled_s(self, point: ProfilePoint) -> float:
        return max(self.contention.busy_s(point.backbone_stage_s, point.head_stage_s))

    @cached_property
    def _points_by_key(self) -> dict[tuple[str, int], ProfilePoint]:
        return {(point.split_point, point.batch_size): point for point in self.points}

    @cached_property
    def _corrections(self) -> dict[int, float]:
        """Median ratio of measured to modelled periods, by batch size."""
        ratios: dict[int, list[float]] = {}
        for point in self.points:
            if not math.isnan(point.period_s):
                ratios.setdefault(point.batch_size, []).append(point.period_s / self._modelled_s(point))
        return {batch_size: statistics.median_low(of_size) for batch_size, of_size in ratios.items()}


class NotProfiledError(ConfigurationError):
    """A model has no profile on this machine at some batch size, and it may not be measured now."""


FindProfile = Callable[[Sequence[int], bool], Profile]
"""Returns the profile at some batch sizes. The second argument says whether it may be measured, which takes a while.

Raises a ConfigurationError if there is no profile: a NotProfiledError if it may only not be measured now.
"""
