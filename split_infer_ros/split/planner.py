"""Which cut and which batch size, and what to measure before that is known: pure functions of a profile."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.profile import Profile, ProfilePoint

THROUGHPUT, LATENCY = "throughput", "latency"
OBJECTIVES = (THROUGHPUT, LATENCY)
NEARLY = 0.9  # of the highest throughput: what noise of a short run may hide


@dataclass(frozen=True, slots=True)
class SplitChoice:
    """A split point and a batch size, and what a saturated pipeline is predicted to do with them.

    Attributes:
        cut: name of the split point.
        batch_size: images a batch.
        throughput: images a second.
        latency_s: of a batch from its closing until its results are out.
        within_bound: False where no split point is fast enough for the bound; this is the one of lowest latency.
    """

    split_point: str
    batch_size: int
    throughput: float
    latency_s: float
    within_bound: bool = True


def plan(
    profile: Profile,
    objective: str = THROUGHPUT,
    latency_bound_s: float = math.inf,
    batch_sizes: Collection[int] | None = None,
) -> SplitChoice:
    """The best of what was measured.

    Args:
        profile: of a model on this machine.
        objective: ``throughput``: the most images a second of all whose latency is within the bound;
            ``latency``: the lowest latency.
        latency_bound_s: seconds.
        batch_sizes: choose among these only; None for all that were measured.

    Raises:
        ConfigurationError: there is no such objective, or none of these batch sizes was measured.
    """
    if objective not in OBJECTIVES:
        raise ConfigurationError(f"objective '{objective}' is unknown; it takes one of: {', '.join(OBJECTIVES)}.")
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
    fitting = [choice for choice in choices if choice.within_bound]
    if objective == LATENCY or not fitting:
        return min(choices, key=lambda choice: (choice.latency_s, -choice.throughput))
    return max(fitting, key=lambda choice: (choice.throughput, -choice.latency_s))


def predict(profile: Profile, point: ProfilePoint, latency_bound_s: float = math.inf) -> SplitChoice:
    """A point as a choice."""
    latency_s = profile.latency_s(point)
    return SplitChoice(
        point.split_point, point.batch_size, profile.throughput(point), latency_s, latency_s <= latency_bound_s
    )


def worth_a_run(profile: Profile, batch_size: int, runs: Mapping[str, int], repeats: int) -> ProfilePoint | None:
    """The split point whose pipeline should be run next; None when the best one is known.

    Those that may be nearly the best have turns, the one with the fewest first, of as many the one that promises most.
    Until a split point is known it promises what was predicted, even if it ran more slowly on a busy machine.

    Args:
        profile: as known so far.
        batch_size: of the split points in question.
        runs: so far, by cut.
        repeats: a split point that has been run so many times is known.
    """
    points = [point for point in profile.points if point.batch_size == batch_size]
    unknown = {
        point: min(profile.period_s(point), profile.predicted_s(point))
        for point in points
        if runs.get(point.split_point, 0) < repeats
    }
    most_s = min(map(profile.period_s, points), default=0.0) / NEARLY
    nearly = [point for point, period_s in unknown.items() if period_s <= most_s]
    return min(nearly, key=lambda point: (runs.get(point.split_point, 0), unknown[point]), default=None)
