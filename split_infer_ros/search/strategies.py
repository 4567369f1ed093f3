"""Chooses the configuration to try next: all in turn, at random, or guided by a cost model. Nothing here measures."""

from __future__ import annotations

import enum
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from split_infer_ros.search.cost_model import CostModel, Sample, expected_improvement
from split_infer_ros.search.space import Config, Space, frozen

NUM_FIRST = 3  # trials before the cost model is asked: the defaults, then configurations with one changed knob
MAX_CANDIDATES = 1500
FAILURE_PENALTY = math.log(2.0)  # a failure counts as this much worse than the worst successful trial


class SearchStrategy(enum.Enum):
    """How a space is searched."""

    GUIDED = "guided"
    RANDOM = "random"
    EXHAUSTIVE = "exhaustive"


@dataclass(frozen=True, slots=True)
class Tried:
    """A configuration and its cost in seconds. The cost is infinite if the configuration failed."""

    config: Config
    cost_s: float


class Search(Protocol):
    """Proposes configurations to try, one at a time."""

    def propose(self, tried: Sequence[Tried]) -> Config | None:
        """Returns a configuration that was not tried yet; None if all were tried.

        Args:
            tried: all configurations that were tried so far, with their costs.
        """
        ...


class Exhaustive:
    """Tries all configurations in the order of the space."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def propose(self, tried: Sequence[Tried]) -> Config | None:
        """Returns the first configuration that was not tried yet; None if all were tried."""
        return next(_rest(self._space, tried), None)


class Random:
    """Tries the default first, then all other configurations in random order. Equal seeds give equal orders."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._space = space
        self._random = random.Random(seed)

    def propose(self, tried: Sequence[Tried]) -> Config | None:
        """Returns the default if nothing was tried yet, else a random configuration; None if all were tried.

        All configurations that were not tried yet have the same chance.
        """
        if not tried:
            return self._space.default
        rest = list(_rest(self._space, tried))
        return self._random.choice(rest) if rest else None

    def expected_best(self) -> Config:
        """Returns the default, because without a cost model nothing better is expected."""
        return self._space.default


class Guided:
    """Tries the defaults, then a few neighbours of them, then what a cost model expects to gain the most.

    A space declares the knobs that matter most first, and the most promising values of each first. The first few trials
    change one knob at a time in that order, because an additive model learns most from single changes. The model is
    fitted again before each proposal.

    Args:
        space: the configurations to choose from.
        seed: equal seeds give equal proposals.
        features: the model features of the task.
        other_samples: measurements of other tasks, relative to their own defaults. If there are any, the single changes
            are left out, and the cost model is asked directly after the defaults.
    """

    def __init__(
        self,
        space: Space,
        seed: int = 0,
        features: Mapping[str, float] | None = None,
        other_samples: Sequence[Sample] = (),
    ) -> None:
        self._space = space
        self._random = random.Random(seed)
        self._features = dict(features or {})
        self._model = CostModel(space, features)
        self._other_samples = list(other_samples)

    def propose(self, tried: Sequence[Tried]) -> Config | None:
        """Returns the configuration with the greatest expected improvement on the best one; None if all were tried."""
        if not tried:
            return self._space.default
        rest = list(_rest(self._space, tried))
        if not rest:
            return None
        if len(rest) > MAX_CANDIDATES:
            rest = self._random.sample(rest, MAX_CANDIDATES)
        self._random.shuffle(rest)  # so that chance decides between equal configurations
        samples = relative_costs(tried, self._space.default, self._features)
        if not samples or (len(tried) < NUM_FIRST and not self._other_samples):
            return next((config for config in self._single_changes() if config in rest), rest[0])
        self._model.fit([*self._other_samples, *samples])
        gains = expected_improvement(*self._model.predict(rest), min(sample.relative for sample in samples))
        return rest[int(gains.argmax())]

    def expected_best(self) -> Config:
        """Returns the best configuration according to measurements of other tasks; the default without any."""
        if not self._other_samples:
            return self._space.default
        self._model.fit(self._other_samples)
        configs = list(self._space)
        mean, _ = self._model.predict(configs)
        return configs[int(mean.argmin())]

    def _single_changes(self) -> Iterator[Config]:
        """Yields copies of the default with one knob changed, in the order in which the space declares the knobs."""
        for name, values in self._space.knobs.items():
            for value in values[1:]:
                yield {**self._space.default, name: value}


def relative_costs(
    tried: Sequence[Tried], default: Config, features: Mapping[str, float] | None = None
) -> list[Sample]:
    """Returns a sample with the relative cost of each configuration that was tried.

    A relative cost is the logarithm of a cost, minus the logarithm of the default's cost. If the default failed or was
    not tried, the median of the successful trials takes its place. A failed trial counts as worse than the worst
    successful one, by ``FAILURE_PENALTY``. If all trials failed, there are no samples.

    Args:
        tried: the configurations and their costs.
        default: the default configuration of the space.
        features: the model features of the task, which every sample gets.
    """
    logs = [math.log(each.cost_s) if 0 < each.cost_s < math.inf else math.inf for each in tried]
    finite = [log for log in logs if log < math.inf]
    if not finite:
        return []
    of_default = (log for log, each in zip(logs, tried, strict=True) if each.config == default and log < math.inf)
    base, worst = next(of_default, statistics.median(finite)), max(finite) + FAILURE_PENALTY
    return [
        Sample(each.config, (log if log < math.inf else worst) - base, dict(features or {}))
        for log, each in zip(logs, tried, strict=True)
    ]


def _rest(space: Space, tried: Sequence[Tried]) -> Iterator[Config]:
    done = {frozen(each.config) for each in tried}
    return (config for config in space if frozen(config) not in done)
