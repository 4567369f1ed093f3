"""Watches the stages at run time, and says when another split point has become better.

The times of both stages at the running cut show how far each has drifted from its profile, with load, clocks and
temperature; every other split point's stages are taken to have drifted as far. Of a split point that was tried, what
was seen there counts, not its profile. So while nothing drifts each split point can disappoint only once, and there is
no going to and fro.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from split_infer_ros.split.planner import THROUGHPUT, SplitChoice, plan, predict
from split_infer_ros.split.profile import Profile, ProfilePoint

LEAST_BATCHES = 5  # a median of fewer says little
LOOKS = 10  # how often the profile is looked through within the time of a dwell
SLIGHT = 0.01  # a stage that takes this part of a period, or less, says little of what others would take

Place = tuple[str, int]
Pair = tuple[float, float]  # the backbone's stage, the head's


@dataclass(frozen=True, slots=True)
class _Sight:
    """What was seen at a split point: seconds a batch in each stage alone, and how far they had drifted."""

    stages_s: Pair
    drift: Pair


class SplitController:
    """Proposes moves; time is passed in.

    Args:
        profile: of the model on this machine.
        objective, latency_bound_s: as the planner has them.
        margin: by so much must another split point be better, as a part of what the running one does.
        dwell_s: for so long without a break, and after a move nothing is judged for as long.
        batch_sizes: to choose among; None keeps to the one that runs.
    """

    def __init__(
        self,
        profile: Profile,
        objective: str = THROUGHPUT,
        latency_bound_s: float = math.inf,
        margin: float = 0.1,
        dwell_s: float = 5.0,
        batch_sizes: Collection[int] | None = None,
    ) -> None:
        self._profile = profile.by_stages()
        self._objective = objective
        self._bound_s = latency_bound_s
        self._margin = margin
        self._dwell_s = dwell_s
        self._batch_sizes = batch_sizes
        self._drift: Pair = (1.0, 1.0)
        self._tried: dict[Place, _Sight] = {}
        self._refused: set[Place] = set()
        self._place: Place | None = None
        self._arrival: _Sight | None = None  # the first sight at the running cut, on which later drift is measured
        self._arrived = self._looked = -math.inf
        self._better_since: float | None = None
        self._seen: deque[tuple[float, float, float]] = deque()

    @property
    def drift(self) -> Pair:
        """How many times slower the backbone's and the head's stage are than when they were profiled."""
        return self._drift

    def observe(
        self, split_point: str, batch_size: int, backbone_s: float, head_s: float, now: float
    ) -> SplitChoice | None:
        """A full batch went through; returns where to move, or None to stay.

        Args:
            cut, batch_size: with which it ran.
            backbone_s: of the backbone, until its features lay in the slot.
            head_s: of the head. Pre- and post-processing are left out: they are the same at every split point.
            now: seconds of any clock that does not jump.
        """
        running = self._profile.point(split_point, batch_size)
        if running is None:
            return None
        if (split_point, batch_size) != self._place:
            self._place, self._arrived = (split_point, batch_size), now
            self._arrival = self._better_since = None
            self._seen.clear()
        self._seen.append((now, running.preprocess_s + backbone_s, head_s + running.decode_s))
        while len(self._seen) > LEAST_BATCHES and self._seen[0][0] < now - self._dwell_s:
            self._seen.popleft()
        if now < max(self._arrived + self._dwell_s, self._looked + self._dwell_s / LOOKS):
            return None
        if len(self._seen) < LEAST_BATCHES:
            return None
        self._looked = now
        self._learn(running)
        better = self._better_than(running)
        if better is None:
            self._better_since = None
        elif self._better_since is None:
            self._better_since = now
        elif now - self._better_since >= self._dwell_s:
            self._better_since = None
            return better
        return None

    def refuse(self, choice: SplitChoice) -> None:
        """That move could not be made (its memory cannot be had, say): it is not proposed again."""
        self._refused.add((choice.split_point, choice.batch_size))

    def _learn(self, running: ProfilePoint) -> None:
        """What was seen over the last dwell is the running split point's; what changed since the arrival is drift."""
        times, backbones, heads = zip(*self._seen, strict=True)
        period_s = (times[-1] - times[0]) / (len(times) - 1)
        stages_s = self._profile.co_run.alone(statistics.median(backbones), statistics.median(heads), period_s)
        if self._arrival is None:
            expected = running.backbone_stage_s, running.head_stage_s
            drift = self._drift if self._tried else self._drifted(_Sight(expected, self._drift), stages_s)
            self._arrival = _Sight(stages_s, drift)
        self._drift = self._drifted(self._arrival, stages_s)
        self._tried[running.split_point, running.batch_size] = _Sight(stages_s, self._drift)

    def _drifted(self, since: _Sight, stages_s: Pair) -> Pair:
        """The drift now, of what is seen now; where there is little to see it hardly changes."""
        slight = SLIGHT * max(since.stages_s)
        backbone, head = (
            drift * (now + slight) / (then + slight)
            for drift, then, now in zip(since.drift, since.stages_s, stages_s, strict=True)
        )
        return backbone, head

    def _better_than(self, running: ProfilePoint) -> SplitChoice | None:
        """The best place, if it is better than this one by the margin."""
        now = self._profile_now(running)
        here = predict(now, self._now(running), self._bound_s)
        # what is just within the bound would be just outside it next time
        bound_s = self._bound_s / (1 + self._margin)
        best = plan(now, self._objective, bound_s)
        if here.within_bound and not best.within_bound:
            return None
        if best.within_bound and not here.within_bound:
            return best
        if self._objective == THROUGHPUT and here.within_bound:
            gain = best.throughput / here.throughput
        else:
            gain = here.latency_s / best.latency_s
        return best if gain >= 1 + self._margin else None

    def _profile_now(self, running: ProfilePoint) -> Profile:
        """The profile as it would be measured at this moment, of the places that may be moved to and this one."""
        allowed = {running.batch_size, *(self._batch_sizes or ())}
        places = [
            self._now(point)
            for point in self._profile.points
            if point.batch_size in allowed and (point.split_point, point.batch_size) not in self._refused
        ]
        return replace(self._profile, points=tuple(places))

    def _now(self, point: ProfilePoint) -> ProfilePoint:
        sight = self._tried.get((point.split_point, point.batch_size))
        if sight is None:
            return point.scaled(*self._drift)
        expected = point.backbone_stage_s, point.head_stage_s
        backbone, head = (
            seen * drift / drift_then / profiled if profiled > 0 else 1.0
            for seen, drift, drift_then, profiled in zip(
                sight.stages_s, self._drift, sight.drift, expected, strict=True
            )
        )
        return point.scaled(backbone, head)
