"""What to try next: exhaustively, at random, or guided by a model of the costs. Pure policies over what was tried."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from split_infer_ros.search.cost_model import CostModel, Sample, expected_improvement
from split_infer_ros.search.space import Config, Frozen, Space, frozen

FIRST = 3  # tried before a model is asked: the defaults, and others that differ from them in one knob
MOST_CANDIDATES = 1500
FAILED = math.log(2.0)  # a failure counts as so much worse than the worst that ran


@dataclass(frozen=True, slots=True)
class Tried:
    """A configuration and its cost, seconds; infinite if it failed."""

    config: Config
    cost_s: float


class Search(Protocol):
    """Proposes what to try."""

    def propose(self, tried: Sequence[Tried]) -> Config | None:
        """A configuration that was not tried; None when all were."""
        ...


class Exhaustive:
    """All of a space, in its order."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def propose(self, tried: Sequence[Tried]) -> Config | None:
        """The first that was not tried."""
        return next(_rest(self._space, tried), None)


class Random:
    """The default first, then any with the same chance; a seed gives a series."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._space = space
        self._random = random.Random(seed)

    def propose(self, tried: Sequence[Tried]) -> Config | None:
        """Any that was not tried."""
        if not tried:
            return self._space.default
        rest = list(_rest(self._space, tried))
        return self._random.choice(rest) if rest else None


class Guided:
    """The defaults, a few next to them, and then where a cost model expects the most, fitted anew each time.

    Knobs are declared with those that matter most first, and their values with the most promising first. So the few
    change one knob at a time, in that order: what each change does is what a model of sums can learn from.

    Args:
        space: to be searched.
        seed: gives a series.
        traits: of the task.
        known: measurements of other tasks, relative to their own defaults; with some, the model is asked at once.
    """

    def __init__(
        self,
        space: Space,
        seed: int = 0,
        traits: Mapping[str, float] | None = None,
        known: Sequence[Sample] = (),
    ) -> None:
        self._space = space
        self._random = random.Random(seed)
        self._traits = dict(traits or {})
        self._model = CostModel(space, traits)
        self._known = list(known)

    def propose(self, tried: Sequence[Tried]) -> Config | None:
        """The one whose improvement upon the best so far is expected to be the greatest."""
        if not tried:
            return self._space.default
        rest = list(_rest(self._space, tried))
        if not rest:
            return None
        if len(rest) > MOST_CANDIDATES:
            rest = self._random.sample(rest, MOST_CANDIDATES)
        self._random.shuffle(rest)  # of equals, any
        samples = relative_costs(tried, self._space.default, self._traits)
        if not samples or (len(tried) < FIRST and not self._known):
            return next((config for config in self._changes() if config in rest), rest[0])
        self._model.fit([*self._known, *samples])
        gains = expected_improvement(*self._model.predict(rest), min(sample.relative for sample in samples))
        return rest[int(gains.argmax())]

    def _changes(self) -> Iterator[Config]:
        """The default with one knob changed, in the order in which they are declared."""
        for name, values in self._space.knobs.items():
            for value in values[1:]:
                yield {**self._space.default, name: value}


def relative_costs(tried: Sequence[Tried], default: Config, traits: Mapping[str, float] | None = None) -> list[Sample]:
    """Costs as logarithms, less that of the default, or, if that failed, the median; none if all failed."""
    able = [math.log(each.cost_s) for each in tried if 0 < each.cost_s < math.inf]
    if not able:
        return []
    base = next(
        (math.log(each.cost_s) for each in tried if each.config == default and 0 < each.cost_s < math.inf),
        statistics.median(able),
    )
    worst = max(able) + FAILED
    return [
        Sample(each.config, (math.log(each.cost_s) if 0 < each.cost_s < math.inf else worst) - base, dict(traits or {}))
        for each in tried
    ]


def replay(search: Search, costs: Mapping[Frozen, float], goal_s: float = 0.0, most: int | None = None) -> list[Tried]:
    """What a search tries, in order, to which recorded costs answer.

    Args:
        search: over a space whose every configuration was recorded.
        costs: by ``frozen`` configuration, seconds; infinite where it failed.
        goal_s: once the best is so good the search ends.
        most: trials; all if None.
    """
    tried: list[Tried] = []
    while (most is None or len(tried) < most) and not (tried and tried[-1].cost_s <= goal_s):
        config = search.propose(tried)
        if config is None:
            break
        tried.append(Tried(config, costs[frozen(config)]))
    return tried


def best_so_far(tried: Sequence[Tried]) -> list[float]:
    """The lowest cost after each trial, seconds."""
    return list(itertools.accumulate((each.cost_s for each in tried), min))


def trials_until(search: Search, costs: Mapping[Frozen, float], goal_s: float) -> float:
    """After how many trials of a replay the best is at the goal or below; infinite if never."""
    tried = replay(search, costs, goal_s)
    return len(tried) if tried and tried[-1].cost_s <= goal_s else math.inf


def _rest(space: Space, tried: Sequence[Tried]) -> Iterator[Config]:
    done = {frozen(each.config) for each in tried}
    return (config for config in space if frozen(config) not in done)
