"""Chooses a split point and a batch size, and what to measure before that: pure functions of a profile."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.setting import MILLISECONDS, check_settings, setting
from split_infer_ros.split.profile import Profile, ProfilePoint

NEAR_BEST = 0.9  # of the highest throughput; noise of a short run may hide a smaller difference
SHORTLISTED = 3  # choices that turns on live frames compare with the running one
HOPELESS = 1.3  # a choice that is predicted to be so many times as bad as the best one is not compared


class Objective(enum.Enum):
    """What the planner optimises.

    - ``THROUGHPUT``: the most images a second among the split points whose latency is within the bound.
    - ``BALANCED``: the same among those whose latency is also near the lowest one; see ``latency_limit``.
    - ``LATENCY``: the lowest latency.
    """

    THROUGHPUT = "throughput"
    BALANCED = "balanced"
    LATENCY = "latency"

    @property
    def latency_limit(self) -> float:
        """How many times the lowest latency is allowed, so that more images are processed a second."""
        return _LATENCY_LIMITS[self]


# The age of the newest result is on average the time of a batch, and half the time until the next result. That is 1.5
# times the time of a batch. If two are computed at once, and take s times as long, it is 1.25 times s of that time. So
# up to s = 1.2, results do not get older.
_LATENCY_LIMITS = {Objective.THROUGHPUT: math.inf, Objective.BALANCED: 1.2, Objective.LATENCY: 1.0}


@dataclass(frozen=True, slots=True)
class Goal:
    """What the planner optimises, and the latency that it allows.

    Raises:
        ConfigurationError: a value is not accepted.
    """

    objective: Objective = setting(
        Objective.BALANCED,
        "What split_point auto optimises: throughput, latency, or balanced (the most images a second for at most 1.2 "
        "times the lowest latency). With throughput, a CPU also computes two batches at the same time while frames "
        "come nearly as fast as it can process them one by one, or faster. This serves more frames, but each one takes "
        "longer. With balanced, it does so only if each one takes at most 1.2 times as long.",
    )
    latency_bound_s: float = setting(
        math.inf,
        "The longest latency that split_point auto allows, from the closing of a batch to its results. 0: no limit.",
        minimum=0.0,
        maximum=60.0,
        unit=MILLISECONDS,
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class SplitChoice:
    """A split point and a batch size, with the predicted performance of a saturated pipeline.

    Attributes:
        split_point: its name.
        batch_size: images a batch.
        throughput: images a second.
        latency_s: seconds from the closing of a batch until its results are out.
        within_bound: whether the latency is within the bound. If no choice is, the planner returns the one with the
            lowest latency.
    """

    split_point: str
    batch_size: int
    throughput: float
    latency_s: float
    within_bound: bool = True


def plan(
    profile: Profile,
    objective: Objective = Objective.THROUGHPUT,
    latency_bound_s: float = math.inf,
    batch_sizes: Collection[int] | None = None,
) -> SplitChoice:
    """Returns the choice of the most images a second among the points whose latency is allowed.

    If no latency is within the bound, the lowest one is allowed.

    Args:
        profile: the profile of a model on this machine.
        objective: what to optimise.
        latency_bound_s: the longest allowed latency, in seconds.
        batch_sizes: the batch sizes to choose among; None for all that were measured.

    Raises:
        ConfigurationError: none of these batch sizes was measured.
    """
    return _ranked(profile, objective, latency_bound_s, batch_sizes)[0]


def shortlist(
    profile: Profile,
    objective: Objective = Objective.THROUGHPUT,
    latency_bound_s: float = math.inf,
    batch_sizes: Collection[int] | None = None,
) -> list[SplitChoice]:
    """Returns the choices that turns on live frames should compare, because predictions are not exact.

    The first one is the choice of ``plan``. Then come the best ones with another batch size, and with another split
    point. The last one has the lowest latency: it is the best one if frames come slowly. Choices that are predicted to
    be much worse than the first one are left out. The arguments and errors are those of ``plan``.
    """
    ranked = _ranked(profile, objective, latency_bound_s, batch_sizes)
    best, lowest = ranked[0], min(ranked, key=lambda choice: choice.latency_s)
    allowed_s = _allowed_s(ranked, objective, latency_bound_s)
    near = [
        choice
        for choice in ranked
        if choice.latency_s <= HOPELESS * allowed_s
        and (objective is Objective.LATENCY or choice.throughput >= best.throughput / HOPELESS)
    ]
    other_size = [choice for choice in near if choice.batch_size != best.batch_size][:1]
    other_point = [choice for choice in near if choice.split_point != best.split_point][:1]
    found = list(dict.fromkeys([best, *other_size, *other_point, *near]))
    if lowest is best:
        return found[:SHORTLISTED]
    return [*[choice for choice in found if choice is not lowest][: SHORTLISTED - 1], lowest]


def coolest(
    profile: Profile,
    busy_s: Callable[[ProfilePoint], float],
    latency_bound_s: float = math.inf,
    batch_sizes: Collection[int] | None = None,
) -> list[SplitChoice]:
    """Returns the choices that need the least time of a hot processor for an image, the least first.

    Choices beyond the latency bound are left out. Choices that are predicted to serve fewer images stay: frames may
    come more slowly than the fastest choice could serve them.

    Args:
        profile: the profile of a model on this machine.
        busy_s: returns how long a batch keeps the hot processor busy, in seconds.
        latency_bound_s: the longest allowed latency, in seconds.
        batch_sizes: the batch sizes to choose among; None for all that were measured.
    """
    points = [point for point in profile.points if batch_sizes is None or point.batch_size in batch_sizes]
    points.sort(key=lambda point: busy_s(point) / point.batch_size)
    choices = [predict(profile, point, latency_bound_s) for point in points]
    return [choice for choice in choices if choice.within_bound][:SHORTLISTED]


def _ranked(
    profile: Profile, objective: Objective, latency_bound_s: float, batch_sizes: Collection[int] | None
) -> list[SplitChoice]:
    """Returns all choices, the best one first: those of an allowed latency by throughput, then the others by latency.

    The arguments and errors are those of ``plan``.
    """
    choices = [
        predict(profile, point, latency_bound_s)
        for point in profile.points
        if batch_sizes is None or point.batch_size in batch_sizes
    ]
    if not choices:
        raise ConfigurationError(
            f"{profile.model} was not measured at batch size {', '.join(map(str, batch_sizes or ('any',)))}, "
            f"only at {', '.join(map(str, profile.batch_sizes)) or 'none'}."
        )
    allowed_s = _allowed_s(choices, objective, latency_bound_s)

    def rank(choice: SplitChoice) -> tuple[bool, float, float]:
        is_allowed = choice.latency_s <= allowed_s
        return not is_allowed, -choice.throughput if is_allowed else choice.latency_s, choice.latency_s

    return sorted(choices, key=rank)


def _allowed_s(choices: Collection[SplitChoice], objective: Objective, latency_bound_s: float) -> float:
    lowest_s = min(choice.latency_s for choice in choices)
    return max(lowest_s, min(latency_bound_s, objective.latency_limit * lowest_s))


def predict(profile: Profile, point: ProfilePoint, latency_bound_s: float = math.inf) -> SplitChoice:
    """Returns a point's split point and batch size as a choice, with the performance that the profile predicts."""
    latency_s = profile.latency_s(point)
    return SplitChoice(
        split_point=point.split_point,
        batch_size=point.batch_size,
        throughput=profile.throughput(point),
        latency_s=latency_s,
        within_bound=latency_s <= latency_bound_s,
    )


def next_to_run(profile: Profile, batch_size: int, *, runs: Mapping[str, int], repeats: int) -> ProfilePoint | None:
    """Returns the point at which to run the pipeline next, to measure its period; None when the best point is known.

    The period is the time between two batches. Candidates have fewer than ``repeats`` runs, and may reach ``NEAR_BEST``
    of the highest throughput. The candidate with the fewest runs is returned; among equals, the one with the shortest
    expected period. The expected period is the shorter one of the measured and the predicted period. A longer
    measurement is not trusted yet, because the machine may have been busy.

    Args:
        profile: the profile with all measurements so far.
        batch_size: the batch size of the points to run.
        runs: how often each split point has run so far, by name.
        repeats: how many runs make a split point known.
    """
    points = [point for point in profile.points if point.batch_size == batch_size]
    expected_s = {
        point: min(profile.period_s(point), profile.predicted_s(point))
        for point in points
        if runs.get(point.split_point, 0) < repeats
    }
    max_period_s = min(map(profile.period_s, points), default=0.0) / NEAR_BEST
    candidates = [point for point, period_s in expected_s.items() if period_s <= max_period_s]
    return min(candidates, key=lambda point: (runs.get(point.split_point, 0), expected_s[point]), default=None)
