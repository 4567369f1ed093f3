"""What turns of two plans measure: how many times as good the rival's plan is, for what the user wants of a model.

- Another engine computes the same partitions. What counts is the time of an image in the backbone.
- Another split point or batch size divides the work anew, and one stage may gain what the other one loses. So what
  leaves the pipeline counts: frames a second, unless both plans are shown to deliver as many. They do so if frames come
  slower than both compute them. Then the age of the results decides.
- While a processor is too hot, its time for an image counts; see ``CoolMeasure``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from split_infer_ros.measurements.turns import median_interval
from split_infer_ros.split.planner import Goal
from split_infer_ros.telemetry.heat import Processor

MIN_ENGINE_GAIN = 1.05  # a smaller gain does not pay for another engine
MIN_SPLIT_GAIN = 1.02  # another split point of the same engine costs nothing
MIN_COOL_GAIN = 1.05  # less time saved on a hot processor is not worth another way to run
MIN_PAIRS = 6  # pairs of turns; with fewer, a median has no interval
SAME_RATE = 1.03  # frames a second that differ by a smaller factor count as equal


@dataclass(frozen=True, slots=True)
class BatchSample:
    """What a batch on live frames has shown.

    Attributes:
        delivered: when its results were out, in seconds of the steady clock.
        num_images: its images.
        backbone_s: seconds in pre-processing and in the backbone, for each image.
        latency_s: seconds from the closing of the batch to its results.
        age_s: seconds from the receipt of an image to its results, the mean of its images.
        cpu_s: seconds of CPU time that all threads of the process have taken since it began.
    """

    delivered: float
    num_images: int
    backbone_s: float
    latency_s: float
    age_s: float
    cpu_s: float = 0.0

    @property
    def closed(self) -> float:
        """When the batch was closed, in seconds of the steady clock."""
        return self.delivered - self.latency_s


Turn = Sequence[BatchSample]
Pair = tuple[Turn, Turn]  # a turn of the incumbent, and a neighbouring one of the rival


class Measure(Protocol):
    """Compares neighbouring turns of an incumbent and a rival."""

    @property
    def min_gain(self) -> float:
        """The gain from which on the rival pays."""
        ...

    @property
    def meaning(self) -> str:
        """What a gain says of the rival, as in 1.2 times as fast."""
        ...

    def gains(self, pairs: Sequence[Pair]) -> list[float]:
        """Returns for each pair of turns how many times as good the rival was."""
        ...


@dataclass(frozen=True, slots=True)
class BackboneMeasure:
    """Compares the seconds of an image in the backbone. It is a ``Measure`` for plans with the same split point."""

    min_gain: float = MIN_ENGINE_GAIN
    meaning: str = "as fast"

    def gains(self, pairs: Sequence[Pair]) -> list[float]:
        """Returns for each pair of turns how many times as fast the rival's backbone was."""
        return _gains(pairs, _median_of(lambda batch: batch.backbone_s))


@dataclass(frozen=True, slots=True)
class GoalMeasure:
    """Compares what leaves the pipeline, by what the user wants. It is a ``Measure`` for any two plans.

    - If one of the plans takes longer than the latency bound, the plan of the lower latency wins.
    - If the results of one are more than ``Objective.latency_limit`` times as old, the other plan wins. For
      ``balanced`` that is 1.2 times. For ``latency`` any difference is too much, and for ``throughput`` none is.
    - Otherwise the plan wins that delivers more frames a second. If both are shown to deliver equally many, the plan
      with the younger results wins.

    Attributes:
        goal: what the user wants.
    """

    goal: Goal
    min_gain: float = MIN_SPLIT_GAIN
    meaning: str = "as fast"

    def gains(self, pairs: Sequence[Pair]) -> list[float]:
        """Returns for each pair of turns how many times as good the rival was. The same rule holds for all pairs.

        With fewer pairs than ``MIN_PAIRS``, both frames a second and age count, whichever is better for the rival.
        """
        latency_s = _median_of(lambda batch: batch.latency_s)
        slowest_s = max(statistics.median(map(latency_s, turns)) for turns in zip(*pairs, strict=True))
        if slowest_s > self.goal.latency_bound_s:
            return _gains(pairs, latency_s)
        younger, limit = _gains(pairs, _median_of(lambda batch: batch.age_s)), self.goal.objective.latency_limit
        times_younger = statistics.median(younger)
        if times_younger < 1 / limit:
            return [gain * limit for gain in younger]
        if times_younger > limit:
            return [gain / limit for gain in younger]
        frames = _gains(pairs, _seconds_per_image)
        if len(pairs) < MIN_PAIRS:  # too few to tell which of both decides, so the rival gets the benefit of the doubt
            return list(map(max, frames, younger))
        return younger if _deliver_alike(frames) else frames


@dataclass(frozen=True, slots=True)
class CoolMeasure:
    """Compares the time of an image on a hot processor. It is a ``Measure`` for any two plans of one model.

    A rival must serve as many frames as the incumbent, and must keep the latency bound if the incumbent keeps it. If it
    does not, it loses, whatever time it saves.

    Attributes:
        hot: the hot processor. For the CPU, the CPU time of the whole process counts; for the GPU, the time of
            pre-processing and backbone.
        latency_bound_s: the latency bound, from the closing of a batch to its results.
    """

    hot: Processor
    latency_bound_s: float = math.inf
    min_gain: float = MIN_COOL_GAIN

    @property
    def meaning(self) -> str:
        """What a gain says of the rival."""
        return f"as sparing of the {self.hot.value}"

    def gains(self, pairs: Sequence[Pair]) -> list[float]:
        """Returns for each pair of turns how many times as much time of the hot processor the incumbent needed.

        With fewer pairs than ``MIN_PAIRS``, a pair in which the rival delivered fewer frames shows that loss instead.
        """
        latency_s = _median_of(lambda batch: batch.latency_s)
        incumbents_s, rivals_s = (statistics.median(map(latency_s, turns)) for turns in zip(*pairs, strict=True))
        if rivals_s > max(incumbents_s, self.latency_bound_s):
            return [min(1.0, gain) for gain in _gains(pairs, latency_s)]
        needed = _cpu_per_image if self.hot is Processor.CPU else _median_of(lambda batch: batch.backbone_s)
        saved, frames = _gains(pairs, needed), _gains(pairs, _seconds_per_image)
        if len(pairs) < MIN_PAIRS:
            return list(map(min, saved, frames))
        return saved if median_interval(frames)[0] > 1 / SAME_RATE else [min(1.0, gain) for gain in frames]


def _gains(pairs: Sequence[Pair], cost: Callable[[Turn], float]) -> list[float]:
    return [cost(incumbent) / cost(rival) for incumbent, rival in pairs]


def _median_of(seconds: Callable[[BatchSample], float]) -> Callable[[Turn], float]:
    return lambda turn: statistics.median(map(seconds, turn))


def _seconds_per_image(turn: Turn) -> float:
    """Returns the mean time between two results. The first batch only marks the beginning."""
    return (turn[-1].delivered - turn[0].delivered) / sum(batch.num_images for batch in turn[1:])


def _cpu_per_image(turn: Turn) -> float:
    """Returns the CPU time for each image. It is never 0, although a clock may show no difference."""
    return max(1e-9, turn[-1].cpu_s - turn[0].cpu_s) / sum(batch.num_images for batch in turn[1:])


def _deliver_alike(frames: Sequence[float]) -> bool:
    """Returns whether both plans are shown to deliver as many images a second, as far as that matters."""
    low, high = median_interval(frames)
    return low > 1 / SAME_RATE and high < SAME_RATE
