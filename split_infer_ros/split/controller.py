"""Watches the stages at run time and proposes another split point when one has become better.

Load, clocks and temperature make the stages slower or faster than in the profile. The drift of a stage says how many
times slower it is. The controller measures the drift at the running split point, and assumes the same drift at all
others. For a split point that has run before, it uses the times observed then, not the profile. So without further
drift, a split point can be slower than predicted only once. The controller never alternates between two split points.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from split_infer_ros.split.planner import Objective, SplitChoice, plan, predict
from split_infer_ros.split.profile import Profile, ProfilePoint

MIN_BATCHES = 5  # fewer give no useful median
CHECKS_PER_DWELL = 10
NEGLIGIBLE = 0.01  # a stage that takes at most this part of the longer one says little about other split points

RunningPoint = tuple[str, int]  # name of the split point, batch size
StagePair = tuple[float, float]  # of the backbone stage, of the head stage


@dataclass(frozen=True, slots=True)
class _Observation:
    """What was observed at a split point: seconds a batch in each stage alone, and the drift at that time."""

    stages_s: StagePair
    drift: StagePair


@dataclass(frozen=True, slots=True)
class _Sample:
    """A batch: when its results were out, seconds of a full batch in each stage, and its share of a full batch."""

    time: float
    backbone_s: float
    head_s: float
    share: float


class SplitController:
    """Proposes moves to other split points. It learns of batches from ``observe``, which also passes the time in.

    Args:
        profile: the model's profile on this machine.
        objective: what to optimise, as for ``plan``.
        latency_bound_s: the longest allowed latency in seconds, as for ``plan``.
        margin: by which share another split point must be better than the running one, in throughput or latency;
            0.1 is a tenth.
        dwell_s: how many seconds another split point must be better without interruption. After a move, nothing is
            proposed for this time.
        batch_sizes: the batch sizes to choose among, besides the running one; None keeps the running one.

    Attributes:
        drift: how many times slower the backbone stage and the head stage are than in the profile.
    """

    def __init__(
        self,
        profile: Profile,
        objective: Objective = Objective.THROUGHPUT,
        latency_bound_s: float = math.inf,
        *,
        margin: float = 0.1,
        dwell_s: float = 5.0,
        batch_sizes: Collection[int] | None = None,
    ) -> None:
        self._profile = profile.without_periods()
        self._objective = objective
        self._bound_s = latency_bound_s
        self._margin = margin
        self._dwell_s = dwell_s
        self._batch_sizes = batch_sizes
        self.drift: StagePair = (1.0, 1.0)
        self._observations: dict[RunningPoint, _Observation] = {}
        self._refused: set[RunningPoint] = set()
        self._is_settling = False
        self._handicaps: dict[RunningPoint, float] = {}  # how many times as slow as predicted points count as being
        self._running: RunningPoint | None = None
        self._first: _Observation | None = None  # at the running split point; later drift is relative to it
        self._moved_at = self._checked_at = -math.inf
        self._better_since: float | None = None
        self._batches: deque[_Sample] = deque()

    def observe(
        self,
        split_point: str,
        batch_size: int,
        *,
        num_images: int | None = None,
        backbone_s: float,
        head_s: float,
        now: float,
    ) -> SplitChoice | None:
        """Takes note of the times of a batch. Returns the split point and batch size to move to, or None to stay.

        ``backbone_s`` and ``head_s`` leave out pre- and post-processing, which take equally long at every split point.
        The times of a batch that is not full are scaled to those of a full batch. A batch is ignored if the profile has
        no times for it.

        Args:
            split_point: the split point at which the batch ran.
            batch_size: the batch size with which the batch ran.
            num_images: the number of images in the batch; None if it is full.
            backbone_s: seconds in the backbone, until its features were in the slot.
            head_s: seconds in the head.
            now: seconds of any clock that does not jump.
        """
        point = self._profile.point(split_point, batch_size)
        own = point if num_images is None else self._profile.estimate(split_point, num_images)
        if point is None or own is None:
            return None
        if (split_point, batch_size) != self._running:
            self._running, self._moved_at = (split_point, batch_size), now
            self._first = self._better_since = None
            self._batches.clear()
        self._batches.append(
            _Sample(
                now,
                (own.preprocess_s + backbone_s) * _ratio(point.backbone_stage_s, own.backbone_stage_s),
                (head_s + own.decode_s) * _ratio(point.head_stage_s, own.head_stage_s),
                own.batch_size / point.batch_size,
            )
        )
        while len(self._batches) > MIN_BATCHES and self._batches[0].time < now - self._dwell_s:
            self._batches.popleft()
        if now < max(self._moved_at + self._dwell_s, self._checked_at + self._dwell_s / CHECKS_PER_DWELL):
            return None
        if len(self._batches) < MIN_BATCHES:
            return None
        self._checked_at = now
        self._update_drift(point)
        if self._is_settling:
            self._settle(point)
        return self._choice_that_lasted(self._better_than(point), now)

    def refuse(self, choice: SplitChoice) -> None:
        """Tells the controller that a move could not be made, for example for lack of memory.

        The choice is not proposed again.
        """
        self._refused.add((choice.split_point, choice.batch_size))

    def settle(self) -> None:
        """Tells the controller that turns on live frames have found the running choice to be the best one.

        Predictions that say otherwise are then wrong. Another choice is better only once the stages have drifted.
        """
        self._is_settling, self._handicaps = True, {}

    def _settle(self, running: ProfilePoint) -> None:
        """Sets the handicaps with which no choice is predicted to be better than the running one."""
        profile, self._is_settling = self._present_profile(running), False
        best, objective = predict(profile, self._present_point(running)), self._objective
        ignores_latency = objective is Objective.THROUGHPUT and best.latency_s <= self._bound_s
        for point in profile.points:
            choice = predict(profile, point)
            faster = 1.0 if objective is Objective.LATENCY else choice.throughput / best.throughput
            sooner = 1.0 if ignores_latency else best.latency_s / choice.latency_s
            self._handicaps[point.split_point, point.batch_size] = max(1.0, faster, sooner)

    def _choice_that_lasted(self, better: SplitChoice | None, now: float) -> SplitChoice | None:
        """Returns the better choice if there has been one for the whole dwell time."""
        if better is None:
            self._better_since = None
            return None
        if self._better_since is None:
            self._better_since = now
            return None
        if now - self._better_since < self._dwell_s:
            return None
        self._better_since = None
        return better

    def _update_drift(self, point: ProfilePoint) -> None:
        """Observes the running point over the last dwell time.

        The first observation shows what the split point costs. Changes after it are drift.
        """
        samples = list(self._batches)
        period_s = (samples[-1].time - samples[0].time) / sum(sample.share for sample in samples[1:])
        stages_s = self._profile.contention.alone_s(
            statistics.median(sample.backbone_s for sample in samples),
            statistics.median(sample.head_s for sample in samples),
            period_s,
        )
        if self._first is None:
            profiled = _Observation((point.backbone_stage_s, point.head_stage_s), self.drift)
            drift = self.drift if self._observations else self._drift_since(profiled, stages_s)
            self._first = _Observation(stages_s, drift)
        self.drift = self._drift_since(self._first, stages_s)
        self._observations[point.split_point, point.batch_size] = _Observation(stages_s, self.drift)

    def _drift_since(self, earlier: _Observation, stages_s: StagePair) -> StagePair:
        """Returns the present drift. The drift of a negligible stage hardly changes."""
        negligible_s = NEGLIGIBLE * max(earlier.stages_s)
        backbone, head = (
            drift * (now_s + negligible_s) / (then_s + negligible_s)
            for drift, then_s, now_s in zip(earlier.drift, earlier.stages_s, stages_s, strict=True)
        )
        return backbone, head

    def _better_than(self, point: ProfilePoint) -> SplitChoice | None:
        """Returns the best choice if it is better than the running one by the margin."""
        profile = self._present_profile(point)
        lowest_s = plan(profile, Objective.LATENCY).latency_s
        allowed_s = min(self._bound_s, self._objective.latency_limit * lowest_s)
        running = predict(profile, self._present_point(point), allowed_s)
        # A choice just within the bound would be just outside it next time.
        best = plan(profile, self._objective, allowed_s / (1 + self._margin))
        if running.within_bound and not best.within_bound:
            return None
        if best.within_bound and not running.within_bound:
            return best
        faster, sooner = best.throughput / running.throughput, running.latency_s / best.latency_s
        return best if (faster if running.within_bound else sooner) >= 1 + self._margin else None

    def _present_profile(self, running: ProfilePoint) -> Profile:
        """Returns the profile as it would be measured now, with the running point and all points that may be chosen."""
        allowed = {running.batch_size, *(self._batch_sizes or ())}
        points = [
            self._present_point(point)
            for point in self._profile.points
            if point.batch_size in allowed and (point.split_point, point.batch_size) not in self._refused
        ]
        return replace(self._profile, points=tuple(points))

    def _present_point(self, point: ProfilePoint) -> ProfilePoint:
        """Returns a point with the times that its stages are expected to take now."""
        key = point.split_point, point.batch_size
        observation, handicap = self._observations.get(key), self._handicaps.get(key, 1.0)
        if observation is None:
            return point.scaled(*(handicap * drift for drift in self.drift))
        profiled_s = point.backbone_stage_s, point.head_stage_s
        backbone, head = (
            handicap * observed * drift / drift_then / profiled if profiled > 0 else 1.0
            for observed, drift, drift_then, profiled in zip(
                observation.stages_s, self.drift, observation.drift, profiled_s, strict=True
            )
        )
        return point.scaled(backbone, head)


def _ratio(full_s: float, own_s: float) -> float:
    return full_s / own_s if own_s > 0 else 1.0
