"""What configurations will cost, learnt from those that were measured (§3.2.3, tensor-level tuning)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.tuning.space import Config, Space

Array = npt.NDArray[np.float64]

NOISE = 0.03  # of a measured cost: medians of a machine that is not quite idle
FAR = 2.0  # a trait's worth, in knobs: tasks that differ by a factor of ten in one say little of each other


VARIANCES, REACHES = (0.5, 1.0, 3.0), (0.7, 1.2, 2.0, 3.5)  # kernels to choose among


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
        self._process: Any = GaussianProcessRegressor(
            ConstantKernel(1.0) * RBF(1.0), alpha=NOISE**2, normalize_y=True, optimizer=_likeliest
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

    def _point(self, config: Config, traits: Mapping[str, float]) -> Array:
        place: list[float] = []
        for name, values in self._space.knobs.items():
            place += [float(value == config[name]) for value in values]
            numbers = [float(value) for value in values if not isinstance(value, (str, bool)) and value > 0]
            if len(numbers) == len(values) > 2:
                place.append(math.log2(float(config[name]) / numbers[0]) / 2)
        # What is not known of the other task is taken to be as here.
        place += [FAR * traits.get(name, here) for name, here in self._traits.items()]
        return np.array(place)


def _likeliest(loss: Callable[..., float], initial: Array, bounds: Array) -> tuple[Array, float]:
    """The likeliest of a few kernels: a descent takes ten times as long, and of few samples finds no better one."""
    thetas = [np.log(np.array(kernel)) for kernel in itertools.product(VARIANCES, REACHES)]
    losses = [loss(theta, eval_gradient=False) for theta in thetas]
    best = int(np.argmin(losses))
    return thetas[best], losses[best]


def expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """By how much each is expected to fall below the best so far, where it does."""
    from scipy.special import ndtr  # comes with scikit-learn

    deviation = np.maximum(deviation, 1e-9)
    below = (best - mean) / deviation
    density = np.exp(-0.5 * below**2) / math.sqrt(2 * math.pi)
    improvement: Array = (best - mean) * ndtr(below) + deviation * density
    return improvement
