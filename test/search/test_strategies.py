from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping

import pytest

from benchmarks.tuning.replay import best_so_far, replay
from split_infer_ros.search import cost_model
from split_infer_ros.search.cost_model import CostModel, Sample
from split_infer_ros.search.space import Config, Frozen, Space, frozen
from split_infer_ros.search.strategies import (
    Exhaustive,
    Guided,
    Random,
    Search,
    Tried,
    relative_costs,
)

SPACE = Space(
    {
        "layout": ("contiguous", "channels_last"),
        "fold": (False, True),
        "fuse": (False, True),
        "threads": (1, 2, 4, 8),
        "batch": (1, 2, 4, 8, 16),
    },
    excludes=({"layout": "contiguous", "fuse": True},),
)


def cost(config: Config, scale: float = 1.0) -> float:
    """Like a network's: factors, with what goes together going better; some configurations fail."""
    if config["threads"] == 8 and config["batch"] == 16:
        return math.inf
    seconds = 20.0 * scale
    seconds *= 0.6 if config["layout"] == "channels_last" else 1.0
    seconds *= 0.8 if config["fold"] else 1.0
    seconds *= 0.7 if config["fuse"] and config["fold"] else 1.1 if config["fuse"] else 1.0
    threads, batch = int(config["threads"]), int(config["batch"])
    seconds *= {1: 1.0, 2: 0.6, 4: 0.45, 8: 0.6}[threads]
    return seconds * (0.7 + 0.3 / batch + 0.02 * batch)


COSTS = {frozen(config): cost(config) for config in SPACE}
GOAL = min(COSTS.values()) / 0.95


def trials_until(search: Search, costs: Mapping[Frozen, float], goal_s: float) -> float:
    """Returns after how many trials of a replay the best is at the goal or below; infinite if never."""
    tried = replay(search, costs, goal_s)
    return len(tried) if tried and tried[-1].cost_s <= goal_s else math.inf


@pytest.mark.parametrize("search", [Exhaustive(SPACE), Random(SPACE, 3)])
def test_all_are_tried_once_the_default_first(search: Search) -> None:
    tried = replay(search, COSTS)
    best = best_so_far(tried)
    assert len(best) == len(tried) == len({frozen(each.config) for each in tried}) == len(SPACE)
    assert tried[0].config == SPACE.default
    assert best[-1] == min(COSTS.values())
    assert best == sorted(best, reverse=True)


def test_a_seed_gives_a_series() -> None:
    first, again, other = (replay(Random(SPACE, seed), COSTS, max_trials=8) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert replay(Guided(SPACE, 1), COSTS, max_trials=8) == replay(Guided(SPACE, 1), COSTS, max_trials=8)


REVERSED = Space({name: values[::-1] for name, values in SPACE.knobs.items()}, SPACE.excludes)


@pytest.mark.parametrize("space", [SPACE, REVERSED], ids=["as declared", "reversed"])
def test_guided_needs_less_than_half_the_trials_of_random(space: Space) -> None:
    guided = [trials_until(Guided(space, seed), COSTS, GOAL) for seed in range(5)]
    chance = [trials_until(Random(space, seed), COSTS, GOAL) for seed in range(50)]
    assert statistics.median(guided) <= statistics.median(chance) / 2


def test_guided_first_changes_one_knob_at_a_time_in_order() -> None:
    space = Space({"a": (1, 2), "b": ("x", "y", "z")}, excludes=({"a": 2, "b": "x"},))
    failed = [Tried(space.default, math.inf)]
    while (config := Guided(space).propose(failed)) is not None:
        failed.append(Tried(config, math.inf))
    changed = [(each.config["a"], each.config["b"]) for each in failed]
    assert changed[:3] == [(1, "x"), (1, "y"), (1, "z")]
    assert sorted(changed[3:]) == [(2, "y"), (2, "z")]


def test_small_space_ends_even_if_all_trials_fail() -> None:
    space = Space({"a": (1, 2), "b": ("x", "y")})
    costs = {frozen(config): math.inf for config in space}
    assert best_so_far(replay(Guided(space), costs)) == [math.inf] * 4
    costs[frozen({"a": 2, "b": "y"})] = 1.0
    assert best_so_far(replay(Guided(space), costs))[-1] == 1.0


def test_samples_of_similar_models_count_more() -> None:
    rng = random.Random(0)
    near, far = {"size": 1.0}, {"size": 4.0}
    configs = rng.sample(list(SPACE), 30)
    taught = relative_costs([Tried(config, cost(config, 3.0)) for config in configs], SPACE.default, near)
    opposite = [Sample(sample.config, -sample.relative, far) for sample in taught]
    search = Guided(SPACE, features={"size": 1.1}, other_samples=[*taught, *opposite])
    assert trials_until(search, COSTS, min(COSTS.values()) * 1.2) <= 3


def test_other_tasks_let_expect_the_best() -> None:
    assert Random(SPACE).expected_best() == Guided(SPACE).expected_best() == SPACE.default
    configs = random.Random(0).sample(list(SPACE), 40)
    taught = relative_costs([Tried(config, cost(config, 3.0)) for config in configs], SPACE.default)
    expected = Guided(SPACE, other_samples=taught).expected_best()
    assert cost(expected) < 1.2 * min(COSTS.values()) < cost(SPACE.default)


def test_relative_costs() -> None:
    space = Space({"a": (1, 2, 3)})
    tried = [Tried({"a": 1}, 2.0), Tried({"a": 2}, 1.0), Tried({"a": 3}, math.inf)]
    relative = [sample.relative for sample in relative_costs(tried, space.default)]
    assert relative == pytest.approx([0.0, -math.log(2), math.log(2)])
    without_default = [sample.relative for sample in relative_costs(tried[1:], space.default)]
    assert without_default == pytest.approx([0.0, math.log(2)])
    assert relative_costs(tried[2:], space.default) == []


def test_cost_model_is_certain_only_near_its_samples() -> None:
    samples = relative_costs([Tried(config, cost(config)) for config in list(SPACE)[::3]], SPACE.default)
    model = CostModel(SPACE)
    model.fit(samples)
    seen, doubt = model.predict([sample.config for sample in samples])
    assert max(abs(seen - [sample.relative for sample in samples])) < 0.1
    _, elsewhere = model.predict(list(SPACE)[1::3])
    assert elsewhere.mean() > doubt.mean()


def test_no_improvement_is_expected_where_cost_is_surely_worse() -> None:
    import numpy as np

    gains = cost_model.expected_improvement(np.array([1.0, -1.0, 0.0]), np.array([1e-6, 1e-6, 1.0]), best=0.0)
    assert gains == pytest.approx([0.0, 1.0, 0.3989], abs=1e-3)
