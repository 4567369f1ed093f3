"""Estimates a figure from the turns of a benchmark, with a 95 % confidence interval.

Rivals take turns, so a machine that gets slower does so for all of them. Each turn gives one sample of each rival. A
slow moment may last longer than one turn, so neighbouring turns are not independent samples. Blocks of several turns
count as independent, and the interval is bootstrapped over these blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
MIN_BLOCKS = 10  # a claim with fewer independent samples is unclear
RESAMPLES = 2000

Samples = NDArray[np.float64]
Statistic = Callable[..., Any]  # takes arrays and reduces their last axis, the turns


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its confidence interval.

    Attributes:
        value: the figure over all turns; NaN if nothing could be measured.
        low, high: the ends of the interval.
        turns: how many turns were sampled; 0 if the figure was counted or computed and has no sampling error.
        blocks: how many blocks of neighbouring turns there are. Each block is one independent sample.
    """

    value: float
    low: float
    high: float
    turns: int = 0
    blocks: int = 0

    @property
    def is_exact(self) -> bool:
        """True if the figure was counted or computed, not sampled."""
        return self.turns == 0

    @property
    def is_sound(self) -> bool:
        """True if the figure is finite and has enough independent samples."""
        return math.isfinite(self.value) and (self.is_exact or self.blocks >= MIN_BLOCKS)

    @property
    def width(self) -> float:
        """The length of the interval relative to the value; infinite if the figure is not sound."""
        if not self.is_sound:
            return math.inf
        return (self.high - self.low) / abs(self.value) if self.value else self.high - self.low

    def times(self, factor: float, plus: float = 0.0) -> Estimate:
        """Returns the figure and its interval in another unit: ``factor`` times the figure, plus ``plus``."""
        ends = sorted((factor * self.low + plus, factor * self.high + plus))
        return replace(self, value=factor * self.value + plus, low=ends[0], high=ends[1])


def exact(value: float) -> Estimate:
    """Returns a figure that was counted or computed. Every run of the same code finds the same value."""
    return Estimate(value, value, value)


NOTHING = exact(math.nan)


def estimate(statistic: Statistic, *samples: ArrayLike) -> Estimate:
    """Estimates a statistic of the samples, with a percentile bootstrap over blocks of turns.

    Args:
        statistic: computes the figure from as many arrays as there are ``samples``. It reduces their last axis, the
            turns, and keeps other axes.
        samples: one array (turns,) for each rival or quantity. Values at the same index belong to the same turn.

    Returns:
        The figure of all turns and its 95 % interval. Without turns, the figure is NaN.

    Raises:
        ValueError: the arrays differ in length.
    """
    arrays = [np.asarray(values, float) for values in samples]
    turns = len(arrays[0])
    if any(values.shape != (turns,) for values in arrays):
        raise ValueError(f"Samples of {[len(values) for values in arrays]} turns do not belong together.")
    if turns == 0:
        return NOTHING
    value = float(statistic(*arrays))
    length = block_length(turns)
    blocks = turns // length
    if turns == 1 or not math.isfinite(value):
        return Estimate(value, low=value, high=value, turns=turns, blocks=blocks)
    low, high = _interval(statistic, [values[turns % length :] for values in arrays], length)
    return Estimate(value, low=min(low, value), high=max(high, value), turns=turns, blocks=blocks)


def block_length(turns: int) -> int:
    """Returns how many turns a block has: the cube root of the number of turns, but few enough for ten blocks.

    The cube root is from Hall, Horowitz and Jing 1995.
    """
    return max(1, min(round(math.pow(turns, 1 / 3)), turns // MIN_BLOCKS))


def _interval(statistic: Statistic, arrays: Sequence[Samples], length: int) -> tuple[float, float]:
    from scipy.stats import bootstrap  # comes with scikit-learn; imported here because the import is slow

    blocks = np.arange(len(arrays[0])).reshape(-1, length)  # the turns of each block

    def resample(chosen: NDArray[np.int64], axis: int = -1) -> Any:  # scipy passes axis=-1
        turns = blocks[chosen].reshape(*chosen.shape[:-1], -1)
        return statistic(*(values[turns] for values in arrays))

    interval = bootstrap(
        (np.arange(len(blocks)),),
        resample,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def median(samples: ArrayLike) -> Estimate:
    """Estimates the median of the samples."""
    return estimate(lambda values: np.median(values, axis=-1), samples)


def mean(samples: ArrayLike) -> Estimate:
    """Estimates the mean of the samples."""
    return estimate(lambda values: np.mean(values, axis=-1), samples)


def ratio(numerators: ArrayLike, denominators: ArrayLike) -> Estimate:
    """Estimates the median, over all turns, of one rival's figure divided by the other's in the same turn."""
    return estimate(lambda one, other: np.median(one / other, axis=-1), numerators, denominators)


def over_turns(figure: Callable[[Sequence[int]], float], turns: int) -> Estimate:
    """Returns a figure that only several turns together have, such as a percentile, with its interval over turns.

    Args:
        figure: computes the figure from some turns, which it gets as their numbers.
        turns: how many turns there were.
    """
    return estimate(
        lambda chosen: np.apply_along_axis(lambda numbers: figure([int(number) for number in numbers]), -1, chosen),
        range(turns),
    )


def together(turns: Sequence[Sequence[float]], chosen: Sequence[int]) -> Samples:
    """Returns the samples of the chosen turns as one array. ``turns`` has the samples of each turn."""
    return np.concatenate([turns[turn] for turn in chosen])


def p99(ages: ArrayLike) -> float:
    """Returns the 99th percentile of ages, in their unit."""
    return float(np.percentile(ages, 99))


def minimum(estimates: Sequence[Estimate]) -> Estimate:
    """Returns the smallest figure. Its interval goes from the smallest low end to the smallest high end."""
    return _extreme(estimates, min)


def maximum(estimates: Sequence[Estimate]) -> Estimate:
    """Returns the largest figure. Its interval goes from the largest low end to the largest high end."""
    return _extreme(estimates, max)


def _extreme(estimates: Sequence[Estimate], choose: Callable[[list[float]], float]) -> Estimate:
    if not estimates or any(math.isnan(each.value) for each in estimates):
        return NOTHING
    sampled = [each for each in estimates if not each.is_exact]
    weakest = min(sampled, key=lambda each: each.blocks) if sampled else estimates[0]
    return Estimate(
        value=choose([each.value for each in estimates]),
        low=choose([each.low for each in estimates]),
        high=choose([each.high for each in estimates]),
        turns=weakest.turns,
        blocks=weakest.blocks,
    )
