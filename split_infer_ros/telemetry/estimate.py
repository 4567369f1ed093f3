"""A measured figure with its 95 % interval: bootstrapped over blocks of turns, as turns that follow each other agree.

Rivals take turns, so that a machine that gets slower does so for all of them. A turn gives one sample of each rival. A
slow moment lasts longer than a turn, so that neighbouring turns are no independent samples; blocks of some turns are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
MIN_BLOCKS = 10  # a claim that rests on fewer independent samples is unclear
RESAMPLES = 2000

Samples = NDArray[np.float64]
Statistic = Callable[..., Any]  # of arrays whose last axis is the turns; it reduces that axis


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, and how certain it is.

    Attributes:
        value: of all turns; NaN where nothing could be measured.
        low, high: the ends of the interval.
        turns: that it rests on; 0 where it was counted or computed, and has no error of sampling.
        blocks: of neighbouring turns, each an independent sample.
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
        """True if the figure can be relied on: it is a number, and rests on enough independent samples."""
        return math.isfinite(self.value) and (self.is_exact or self.blocks >= MIN_BLOCKS)

    @property
    def width(self) -> float:
        """The interval's length in parts of the value; infinite without a sound figure."""
        if not self.is_sound:
            return math.inf
        return (self.high - self.low) / abs(self.value) if self.value else self.high - self.low

    def times(self, factor: float, plus: float = 0.0) -> Estimate:
        """The figure in another unit: ``factor`` times it, ``plus`` more."""
        ends = sorted((factor * self.low + plus, factor * self.high + plus))
        return replace(self, value=factor * self.value + plus, low=ends[0], high=ends[1])


def exact(value: float) -> Estimate:
    """A figure that was counted or computed: every run of the same code finds the same."""
    return Estimate(value, value, value)


NOTHING = exact(math.nan)


def estimate(statistic: Statistic, *samples: ArrayLike) -> Estimate:
    """A statistic of the turns' samples, with its interval by the percentile bootstrap over blocks of turns.

    Args:
        statistic: takes as many arrays as there are ``samples``, and reduces their last axis, which is the turns.
        samples: one array (turns,) for each rival or quantity; what stands at one place is of one turn.

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
        return Estimate(value, value, value, turns, blocks)
    low, high = _interval(statistic, [values[turns % length :] for values in arrays], length)
    return Estimate(value, min(low, value), max(high, value), turns, blocks)


def block_length(turns: int) -> int:
    """Turns a block: the cube root of all of them (Hall, Horowitz and Jing 1995), but never fewer than ten blocks."""
    return max(1, min(round(math.pow(turns, 1 / 3)), turns // MIN_BLOCKS))


def _interval(statistic: Statistic, arrays: Sequence[Samples], length: int) -> tuple[float, float]:
    from scipy.stats import bootstrap  # comes with scikit-learn; here, because this import is slow

    places = np.arange(len(arrays[0])).reshape(-1, length)

    def of_blocks(chosen: NDArray[np.int64], axis: int = -1) -> Any:  # scipy asks for the last axis
        turns = places[chosen].reshape(*chosen.shape[:-1], -1)
        return statistic(*(values[turns] for values in arrays))

    found = bootstrap(
        (np.arange(len(places)),),
        of_blocks,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def median(samples: ArrayLike) -> Estimate:
    """The samples' median."""
    return estimate(lambda values: np.median(values, axis=-1), samples)


def mean(samples: ArrayLike) -> Estimate:
    """The samples' mean."""
    return estimate(lambda values: np.mean(values, axis=-1), samples)


def ratio(these: ArrayLike, those: ArrayLike) -> Estimate:
    """The median over the turns of two rivals' ratio in the same turn."""
    return estimate(lambda one, other: np.median(one / other, axis=-1), these, those)


def least(estimates: Sequence[Estimate]) -> Estimate:
    """The smallest of several figures, which lies between the smallest low and the smallest high end."""
    return _extreme(estimates, min)


def most(estimates: Sequence[Estimate]) -> Estimate:
    """The largest of several figures, which lies between the largest low and the largest high end."""
    return _extreme(estimates, max)


def _extreme(estimates: Sequence[Estimate], choose: Callable[[list[float]], float]) -> Estimate:
    if not estimates or any(math.isnan(found.value) for found in estimates):
        return NOTHING
    sampled = [found for found in estimates if not found.is_exact]
    weakest = min(sampled, key=lambda found: found.blocks) if sampled else estimates[0]
    value, low, high = (choose([getattr(found, end) for found in estimates]) for end in ("value", "low", "high"))
    return Estimate(value, low, high, weakest.turns, weakest.blocks)
