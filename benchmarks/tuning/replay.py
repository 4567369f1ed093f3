"""Replays a search on recorded costs, without measuring."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from split_infer_ros.search.space import Frozen, frozen
from split_infer_ros.search.strategies import Search, Tried


def replay(
    search: Search, costs: Mapping[Frozen, float], goal_s: float = 0.0, max_trials: int | None = None
) -> list[Tried]:
    """Returns the configurations that a search tries, in order, each with its recorded cost.

    Args:
        search: a search of a space in which every configuration was recorded.
        costs: the seconds of each configuration, by its ``frozen`` form; infinite if the configuration failed.
        goal_s: the search ends when a configuration takes at most this many seconds.
        max_trials: the search ends after this many trials; None sets no limit.
    """
    tried: list[Tried] = []
    while (max_trials is None or len(tried) < max_trials) and not (tried and tried[-1].cost_s <= goal_s):
        config = search.propose(tried)
        if config is None:
            break
        tried.append(Tried(config, costs[frozen(config)]))
    return tried


def best_so_far(tried: Sequence[Tried]) -> list[float]:
    """Returns the lowest cost after each trial, in seconds."""
    return list(itertools.accumulate((each.cost_s for each in tried), min))
