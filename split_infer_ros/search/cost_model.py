"""What configurations will cost, learnt from those that were measured (§3.2.3, tensor-level tuning)."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.search.space import Config, Space, Value

Array = npt.NDArray[np.float64]

NOISE = 0.03  # of a measured cost: medians of a machine that is not quite idle
FAR = 2.0  # a trait's worth, in knobs: tasks that differ by a factor of ten in one say little of each other

EACH, TOGETHER = 0.5, 0.3  # variances of what one knob does whatever the others say, and of what all do together
REACH_OF_EACH, REACH = 0.7, 1.5  # of these, in knobs


@dataclass(frozen=True)
class Sample:
    """A measured configuration.

    Attributes:
        config: of the space.
        relative: its cost as a logarithm, less that of the same task's default: what tasks have in common.
        traits: what is known of the task itself, numbers whose differences by 1 matter.
    """

    config: Config
    relative: float
    traits: Mapping[str, float] = field(default_factory=dict)


class CostModel:
    """A Gaussian process over knobs and traits: near configurations of near tasks cost alike.

    Costs are factors of knobs for the most part, so their logarithms are sums: the kernel is one of each knob alone
    and one of all together (additive Gaussian processes, Duvenaud et al. 2011). That is taken as given, not learnt:
    few samples say little of a kernel, and what they would say misleads.

    Each knob is a group of coordinates, one a value, and of numbers their logarithm, so that any two values are apart
    and neighbouring numbers less. Records of other models count as far as their traits are near, by the same kernel.

    Args:
        space: whose configurations are judged.
        traits: of the task in question.

    Raises:
        ConfigurationError: scikit-learn is missing.
    """

    def __init__(self, space: Space, traits: Mapping[str, float] | None = None) -> None:
        try:
            from sklearn.gaussian_process import GaussianProcessRegressor  # only here: it takes a second
            from sklearn.gaussian_process.kernels import RBF, ConstantKernel
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"Guided search needs scikit-learn ({error}): pip install scikit-learn, or search at random."
            ) from error
        self._space = space
        self._traits = dict(traits or {})
        reaches = self._reaches_of_each()
        alone = functools.reduce(operator.add, (ConstantKernel(EACH) * RBF(reach) for reach in reaches))
        self._process: Any = GaussianProcessRegressor(
            alone + ConstantKernel(TOGETHER) * RBF(REACH), alpha=NOISE**2, normalize_y=True, optimizer=None
        )

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn from samples, of this task and of others."""
        self._process.fit(
            np.stack([self._point(sample.config, sample.traits) for sample in samples]),
            np.array([sample.relative for sample in samples]),
        )

    def predict(self, configs: Sequence[Config]) -> tuple[Array, Array]:
        """Of each configuration of this task, the expected relative cost and its standard deviation."""
        mean, deviation = self._process.predict(
            np.stack([self._point(config, self._traits) for config in configs]), return_std=True
        )
        return mean, deviation

    def _reaches_of_each(self) -> list[Array]:
        """For each knob the reach of a kernel along each coordinate: infinite along those of the other knobs."""
        widths = [len(_coordinates(values, values[0])) for values in self._space.knobs.values()]
        ends = np.cumsum(widths)
        reaches = []
        for end, width in zip(ends, widths, strict=True):
            reach = np.full(ends[-1] + len(self._traits), math.inf)
            reach[end - width : end] = REACH_OF_EACH
            reach[ends[-1] :] = REACH
            reaches.append(reach)
        return reaches

    def _point(self, config: Config, traits: Mapping[str, float]) -> Array:
        place = [each for name, values in self._space.knobs.items() for each in _coordinates(values, config[name])]
        # What is not known of the other task is taken to be as here.
        place += [FAR * traits.get(name, here) for name, here in self._traits.items()]
        return np.array(place)


def _coordinates(values: Sequence[Value], chosen: Value) -> list[float]:
    """Of one knob."""
    place = [float(value == chosen) for value in values]
    numbers = [float(value) for value in values if not isinstance(value, (str, bool)) and value > 0]
    if len(numbers) == len(values) > 2:
        place.append(math.log2(float(chosen) / numbers[0]) / 2)
    return place


def expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """By how much each is expected to fall below the best so far, where it does."""
    from scipy.special import ndtr  # comes with scikit-learn

    deviation = np.maximum(deviation, 1e-9)
    below = (best - mean) / deviation
    density = np.exp(-0.5 * below**2) / math.sqrt(2 * math.pi)
    improvement: Array = (best - mean) * ndtr(below) + deviation * density
    return improvement
