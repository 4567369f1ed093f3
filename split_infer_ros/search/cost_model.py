"""Predicts the costs of configurations from measured ones (paper 004, §3.2.3, tensor-level tuning)."""

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

NOISE = 0.03  # the relative noise of a measured cost: of medians on a machine that is not quite idle
# How many knobs a difference of 1 in a feature counts as. Tasks that differ tenfold in a feature say little about each
# other.
FEATURE_SCALE = 2.0

KNOB_VARIANCE, JOINT_VARIANCE = 0.5, 0.3  # variances of the effect of one knob alone, and of all knobs together
KNOB_LENGTH_SCALE, JOINT_LENGTH_SCALE = 0.7, 1.5  # the length scales of these two kernels, in knobs


@dataclass(frozen=True)
class Sample:
    """A measured configuration.

    Attributes:
        config: a configuration of the space.
        relative: the relative cost: the logarithm of the configuration's cost, minus the logarithm of the default's
            cost for the same task. Relative costs can be compared between tasks.
        features: numbers that describe the task itself, scaled so that a difference of 1 matters.
    """

    config: Config
    relative: float
    features: Mapping[str, float] = field(default_factory=dict)


class CostModel:
    """A Gaussian process over knobs and model features. Similar configurations of similar tasks have similar costs.

    A cost is mostly a product of factors, one for each knob, so its logarithm is a sum. Therefore the kernel adds a
    term for each knob alone and one for all together (additive Gaussian processes, Duvenaud et al. 2011). The kernel's
    parameters are fixed, because few samples say little about them, and fitting them misleads.

    Each knob has one coordinate for each value. A numeric knob also has its logarithm as a coordinate, so that
    neighbouring numbers are nearer than distant ones. Measurements of other models are used through the same kernel:
    the more similar their features, the more weight they have.

    Args:
        space: the configurations to predict.
        features: the model features of the task.

    Raises:
        ConfigurationError: scikit-learn is missing.
    """

    def __init__(self, space: Space, features: Mapping[str, float] | None = None) -> None:
        try:
            from sklearn.gaussian_process import GaussianProcessRegressor  # only here, because it takes a second
            from sklearn.gaussian_process.kernels import RBF, ConstantKernel
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"Guided search needs scikit-learn ({error}): pip install scikit-learn, or search at random."
            ) from error
        self._space = space
        self._features = dict(features or {})
        length_scales = self._length_scales_of_each()
        each_knob = functools.reduce(
            operator.add, (ConstantKernel(KNOB_VARIANCE) * RBF(scale) for scale in length_scales)
        )
        self._process: Any = GaussianProcessRegressor(
            each_knob + ConstantKernel(JOINT_VARIANCE) * RBF(JOINT_LENGTH_SCALE),
            alpha=NOISE**2,
            normalize_y=True,
            optimizer=None,
        )

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learns from samples of this task and of other tasks. It forgets the samples of earlier calls."""
        self._process.fit(
            np.stack([self._point(sample.config, sample.features) for sample in samples]),
            np.array([sample.relative for sample in samples]),
        )

    def predict(self, configs: Sequence[Config]) -> tuple[Array, Array]:
        """Predicts the relative costs of configurations of this task.

        Returns:
            The expected relative costs and their standard deviations, each float64 (number of configurations,).
        """
        mean, deviation = self._process.predict(
            np.stack([self._point(config, self._features) for config in configs]), return_std=True
        )
        return mean, deviation

    def _length_scales_of_each(self) -> list[Array]:
        """Returns, for each knob, its kernel's length scale along each coordinate; infinite along other knobs' ones."""
        widths = [len(_coordinates(values, values[0])) for values in self._space.knobs.values()]
        ends = np.cumsum(widths)
        length_scales = []
        for end, width in zip(ends, widths, strict=True):
            scale = np.full(ends[-1] + len(self._features), math.inf)
            scale[end - width : end] = KNOB_LENGTH_SCALE
            scale[ends[-1] :] = JOINT_LENGTH_SCALE
            length_scales.append(scale)
        return length_scales

    def _point(self, config: Config, features: Mapping[str, float]) -> Array:
        point = [each for name, values in self._space.knobs.items() for each in _coordinates(values, config[name])]
        # If another task lacks a feature, this task's value is used.
        point += [FEATURE_SCALE * features.get(name, here) for name, here in self._features.items()]
        return np.array(point)


def _coordinates(values: Sequence[Value], chosen: Value) -> list[float]:
    """Returns the coordinates of one knob at the chosen value."""
    coordinates = [float(value == chosen) for value in values]
    numbers = [float(value) for value in values if not isinstance(value, (str, bool)) and value > 0]
    if len(numbers) == len(values) > 2:
        coordinates.append(math.log2(float(chosen) / numbers[0]) / 2)
    return coordinates


def expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Returns by how much each configuration is expected to improve on the lowest relative cost so far.

    The result is the mean over all outcomes, in which a worse outcome has the improvement 0. It has the shape of
    ``mean``.

    Args:
        mean, deviation: the expected relative costs and their standard deviations; see ``CostModel.predict``.
        best: the lowest relative cost that was measured so far.
    """
    from scipy.special import ndtr  # comes with scikit-learn

    deviation = np.maximum(deviation, 1e-9)
    below = (best - mean) / deviation
    density = np.exp(-0.5 * below**2) / math.sqrt(2 * math.pi)
    improvement: Array = (best - mean) * ndtr(below) + deviation * density
    return improvement
