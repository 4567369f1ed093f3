"""What each split point of a model costs on this machine, and what follows for a pipeline of two stages.

The backbone's stage (pre-processing, backbone, features into the slot) works on one batch while the head's stage (head,
decoding) works on the batch before it. Where the two share cores, each slows the other down.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

SLOWEST = 0.05  # no stage is held up more than this, whatever one measurement says


@dataclass(frozen=True, slots=True)
class CoRun:
    """How fast each stage is while the other one works too, its speed alone being 1.

    Two processors of their own give 1 and 1; two stages that take turns on one give rates whose sum is 1.
    """

    backbone: float = 1.0
    head: float = 1.0

    def busy(self, backbone_s: float, head_s: float) -> tuple[float, float]:
        """What a batch takes in each stage while the pipeline is saturated; the longer one is its period.

        Args:
            backbone_s, head_s: of a batch in each stage alone.
        """
        backbone = min(backbone_s / self.backbone, backbone_s + head_s * (1 - self.backbone) / self.head)
        head = min(head_s / self.head, head_s + backbone_s * (1 - self.head) / self.backbone)
        return backbone, head

    def alone(self, backbone_s: float, head_s: float, period_s: float) -> tuple[float, float]:
        """The reverse of ``busy``: what a batch would take in each stage alone, of times seen in a running pipeline.

        Args:
            backbone_s, head_s: of a batch in each stage, as seen.
            period_s: between two batches; longer than both stages take where too few frames come.
        """
        together = min(max(backbone_s + head_s - period_s, 0.0), backbone_s, head_s)
        return backbone_s - together * (1 - self.backbone), head_s - together * (1 - self.head)

    @classmethod
    def seen(cls, alone_s: tuple[float, float], busy_s: tuple[float, float]) -> CoRun:
        """The rates under which stages that take ``alone_s`` take ``busy_s`` in a saturated pipeline.

        Args:
            alone_s: of a batch in the backbone's and in the head's stage.
            busy_s: likewise, as seen; the longer stage was always at work, the other while that one was, too.
        """
        backbone, head = busy_s
        together = min(backbone, head)
        rates = (
            1 - (busy - alone) / together if together > 0 else 1.0 for alone, busy in zip(alone_s, busy_s, strict=True)
        )
        return cls(*(min(1.0, max(SLOWEST, rate)) for rate in rates))


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """One split point at one batch size: seconds a batch, each measured alone.

    Attributes:
        cut: its name.
        batch_size: images a batch.
        bytes_per_image: what crosses.
        preprocess_s: pixels to the model's input.
        backbone_s: the backbone's partition.
        hand_over_s: the features into the slot.
        head_s: the head's partition.
        decode_s: outputs to detections in the source's pixels.
        period_s: between two batches of the whole pipeline, saturated; NaN where that was not measured.
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
        """The backbone's stage, alone."""
        return self.preprocess_s + self.backbone_s + self.hand_over_s

    @property
    def head_stage_s(self) -> float:
        """The head's stage, alone."""
        return self.head_s + self.decode_s

    def scaled(self, backbone: float, head: float) -> ProfilePoint:
        """The same with each stage so many times slower; the whole's period is then unknown."""
        return replace(
            self,
            preprocess_s=self.preprocess_s * backbone,
            backbone_s=self.backbone_s * backbone,
            hand_over_s=self.hand_over_s * backbone,
            head_s=self.head_s * head,
            decode_s=self.decode_s * head,
            period_s=math.nan,
        )


@dataclass(frozen=True)
class Profile:
    """Every split point of a model at several batch sizes.

    Attributes:
        model: its name.
        device: where the backbone ran.
        points: by batch size, then in the order of the split points.
        co_run: what the stages do to each other.
    """

    model: str
    device: str
    points: tuple[ProfilePoint, ...]
    co_run: CoRun

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Those that were measured, ascending."""
        return tuple(sorted({point.batch_size for point in self.points}))

    def point(self, split_point: str, batch_size: int) -> ProfilePoint | None:
        """The one of that split point and batch size, if it was measured."""
        return self._by_name.get((split_point, batch_size))

    def period_s(self, point: ProfilePoint) -> float:
        """Seconds between two batches of a saturated pipeline: measured, or else predicted."""
        return self.predicted_s(point) if math.isnan(point.period_s) else point.period_s

    def predicted_s(self, point: ProfilePoint) -> float:
        """Seconds between two batches, from the stages' times.

        Corrected by how far off such predictions were that have been measured, at the same batch size.
        """
        return self._modelled_s(point) * self._correction.get(point.batch_size, 1.0)

    def throughput(self, point: ProfilePoint) -> float:
        """Images a second of a saturated pipeline."""
        return point.batch_size / self.period_s(point)

    def latency_s(self, point: ProfilePoint) -> float:
        """Of a batch from its closing until its results are out: both stages busy, no wait for a slot."""
        return sum(self.co_run.busy(point.backbone_stage_s, point.head_stage_s))

    def with_point(self, point: ProfilePoint) -> Profile:
        """The same with this point in the place of the one of its split point and batch size."""
        mine = point.split_point, point.batch_size
        return replace(self, points=tuple(point if (p.split_point, p.batch_size) == mine else p for p in self.points))

    def by_stages(self) -> Profile:
        """The same predictions from the stages' times alone, scaled to give what was measured of the whole."""
        factors = [self.period_s(point) / self._modelled_s(point) for point in self.points]
        return replace(
            self, points=tuple(p.scaled(factor, factor) for p, factor in zip(self.points, factors, strict=True))
        )

    def _modelled_s(self, point: ProfilePoint) -> float:
        return max(self.co_run.busy(point.backbone_stage_s, point.head_stage_s))

    @cached_property
    def _by_name(self) -> dict[tuple[str, int], ProfilePoint]:
        return {(point.split_point, point.batch_size): point for point in self.points}

    @cached_property
    def _correction(self) -> dict[int, float]:
        ratios: dict[int, list[float]] = {}
        for point in self.points:
            if not math.isnan(point.period_s):
                ratios.setdefault(point.batch_size, []).append(point.period_s / self._modelled_s(point))
        return {batch_size: statistics.median_low(found) for batch_size, found in ratios.items()}


def describe(profile: Profile, chosen: Sequence[ProfilePoint] = ()) -> str:
    """A table for people, times in milliseconds; ``chosen`` points carry a mark, measured throughputs a star."""
    width = max((len(point.split_point) for point in profile.points), default=3)
    columns = ("prep", "backbone", "handover", "head", "decode", "images/s", "latency")
    lines = [
        f"{profile.model} on {profile.device}; while both stages work, the backbone's runs at "
        f"{profile.co_run.backbone:.2f} and the head's at {profile.co_run.head:.2f} of its speed alone.",
        f"{'batch':>5}  {'split_point':<{width}}  {'KB/image':>9}  " + "  ".join(f"{column:>9}" for column in columns),
    ]
    for point in profile.points:
        times = (point.preprocess_s, point.backbone_s, point.hand_over_s, point.head_s, point.decode_s)
        star = " " if math.isnan(point.period_s) else "*"
        lines.append(
            f"{point.batch_size:>5}  {point.split_point:<{width}}  {point.bytes_per_image / 1e3:>9.1f}  "
            + "  ".join(f"{1e3 * seconds:>9.2f}" for seconds in times)
            + f"  {profile.throughput(point):>8.1f}{star}  {1e3 * profile.latency_s(point):>9.2f}"
            + ("  <" if point in chosen else "")
        )
    return "\n".join(lines)
