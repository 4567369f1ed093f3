"""Measures all configurations of a small space, and replays searches on the measured times, seed by seed."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import estimate
from benchmarks.common.turns import Contest
from benchmarks.tuning.replay import best_so_far, replay
from split_infer_ros.autotuning.spaces import NETWORK, network_space
from split_infer_ros.autotuning.trials import Trials
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.search.space import Frozen, Space, frozen
from split_infer_ros.search.strategies import Exhaustive, Guided, Random, Search, SearchStrategy
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.telemetry.machine import num_cores

GUIDED, RANDOM, EXHAUSTIVE = (strategy.value for strategy in SearchStrategy)
WITHIN = 0.95  # a search ends within this share of the best speed

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """A space in which every configuration was measured.

    Attributes:
        space: the space.
        samples: the samples of the seconds per image, by the ``frozen`` form of the configuration.
        took: the seconds that the trial took, by the ``frozen`` form of the configuration.
    """

    space: Space
    samples: Mapping[Frozen, Sequence[float]]
    took: Mapping[Frozen, float]

    def costs(self) -> dict[Frozen, float]:
        """Returns the median seconds per image of each configuration."""
        return {config: statistics.median(samples) for config, samples in self.samples.items()}

    def drawn_costs(self, seed: int) -> dict[Frozen, float]:
        """Returns costs that another measurement might have found: medians of samples that are drawn with replacement.

        With the measured medians, configurations with nearly equal costs would have the same order in every replay.
        """
        random = np.random.default_rng(seed)
        return {
            config: float(np.median(random.choice(np.asarray(samples), len(samples))))
            for config, samples in self.samples.items()
        }


def record_costs(model: str, batch_sizes: Sequence[int], trial_s: float, device: torch.device) -> Recorded:
    """Measures all configurations of a space of execution configs and batch sizes, on engine torch.

    Args:
        model: the name of the model.
        batch_sizes: the batch sizes of the space.
        trial_s: an uncertain measurement of a configuration is not repeated after this many seconds.
        device: the device that runs the model.
    """
    base = network_space(num_cores(), device=device.type, compilers=False, engines=(Engine.TORCH.value,))
    slowest_first = {"convolutions": base.knobs["convolutions"][::-1], "batch_size": tuple(batch_sizes)}
    space = Space({**base.knobs, **slowest_first}, base.excludes)
    trials = Trials(ModelSpec(model, "random", str(device)))
    trials.model(ExecutionConfig())
    samples, took = {}, {}
    for config in space:
        plain = {name: value for name, value in config.items() if name != "batch_size"}
        size, begin = int(config["batch_size"]), time.perf_counter()
        answer = trials.run(NETWORK, plain, {"batch_size": size}, trial_s)
        took[frozen(config)] = time.perf_counter() - begin
        samples[frozen(config)] = [cost / size for cost in answer["costs"]]
    return Recorded(space, samples, took)


class Replays:
    """Replays guided and random search on recorded costs. A search ends at a cost near the best one; see ``WITHIN``.

    Turns are independent of each other: each has its own seed and its own drawn costs.

    Args:
        recorded: the measured space.

    Attributes:
        contest: the contest of the two searches.
    """

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self._bests: dict[str, list[list[float]]] = {}
        self._seconds: dict[str, list[list[float]]] = {}
        self.contest = Contest("searches", self._turn, lambda contest: claims_of_searches(self.rows()))
        self._replay(EXHAUSTIVE, Exhaustive(recorded.space), recorded.costs())

    def rows(self) -> list[Row]:
        """Returns a row for each search: trials and seconds of its replays, and the median best cost by trial."""
        return [
            {
                "what": "search",
                "search": kind,
                "space": len(self._recorded.space),
                "trials_median": statistics.median(map(len, bests)),
                "trials": list(map(len, bests)),
                "seconds_median": statistics.median(curve[-1] for curve in self._seconds[kind]),
                "seconds": [curve[-1] for curve in self._seconds[kind]],
                "best_so_far_ms": [1e3 * value for value in _medians(bests)],
                "seconds_so_far": _medians(self._seconds[kind]),
                "turn_s": self.contest.turn_s,
            }
            for kind, bests in self._bests.items()
        ]

    def _turn(self, seed: int) -> dict[str, float]:
        space = self._recorded.space
        searches = {GUIDED: Guided(space, seed), RANDOM: Random(space, seed)}
        costs = self._recorded.drawn_costs(seed)
        return {kind: float(self._replay(kind, search, costs)) for kind, search in searches.items()}

    def _replay(self, kind: str, search: Search, costs: Mapping[Frozen, float]) -> int:
        took = self._recorded.took
        begin = time.perf_counter()
        tried = replay(search, costs, min(costs.values()) / WITHIN)  # the search ends at this goal
        proposing_s = (time.perf_counter() - begin) / len(tried)
        seconds = itertools.accumulate(took[frozen(each.config)] + proposing_s for each in tried)
        self._bests.setdefault(kind, []).append(best_so_far(tried))
        self._seconds.setdefault(kind, []).append(list(seconds))
        return len(tried)


def claims_of_searches(rows: Sequence[Row]) -> list[Claim]:
    """Returns the claim about how many trials guided search needs, as a share of the trials of random search.

    Returns no claim if the rows of one of the two are missing.
    """
    by_kind = {row["search"]: row for row in rows}
    if not by_kind.keys() >= {GUIDED, RANDOM}:
        return []

    def share(guided: Any, random: Any) -> Any:
        return np.median(guided, axis=-1) / np.median(random, axis=-1)

    guided, random = by_kind[GUIDED], by_kind[RANDOM]
    found = estimate(share, guided["trials"], random["trials"])
    claim = "guided, of random's trials until within 5 %"
    return [Claim(claim, found, "x", 0.5, Direction.AT_MOST, turn_s=guided["turn_s"])]


def _medians(curves: Sequence[Sequence[float]]) -> list[float]:
    """Returns the median of all curves after each trial. A curve that has ended keeps its last value."""
    most = max(map(len, curves))
    return [statistics.median(curve[min(turn, len(curve) - 1)] for curve in curves) for turn in range(most)]
