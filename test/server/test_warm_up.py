"""Blank batches run as later ones do: on all cores, and on lanes at the same time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.runtime.num_threads import engine_lanes, engine_threads
from split_infer_ros.server import warm_up
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.warm_up import NUM_LANES, WarmUp
from split_infer_ros.split.planner import Objective

NUM_CORES = 4
MEET_S = 10.0


class WatchedPlan:
    """A plan that notes how its blank batches run.

    Args:
        engine: the engine of its model.

    Attributes:
        model: says which engine runs, and where.
        in_slots: the threads and lanes of each engine's batch that takes a slot.
        beside: the same of those that take none; they wait for each other.
        sizes: the batch sizes that run, each time.
    """

    def __init__(self, engine: Engine) -> None:
        self.settings = StageSettings(lane_limit=Objective.BALANCED.latency_limit)
        config, network = ExecutionConfig(engine=engine, threads=NUM_CORES), SimpleNamespace(has_one_graph=True)
        self.model = SimpleNamespace(execution_config=config, device=CPU, network=network)
        self.warm_up_sizes = (1, 8)
        self.sizes: list[Sequence[int]] = []
        self.in_slots: list[tuple[int, int]] = []
        self.beside: list[tuple[int, int]] = []
        self._lanes = threading.Barrier(NUM_LANES)

    def warm_up(self, sizes: Sequence[int], stream: object, copy_stream: object) -> None:
        self.sizes.append(sizes)
        self.in_slots.append((engine_threads(), engine_lanes()))

    def warm_up_beside(self, sizes: Sequence[int]) -> None:
        self.sizes.append(sizes)
        self._lanes.wait(MEET_S)
        self.beside.append((engine_threads(), engine_lanes()))


def made(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> tuple[WarmUp, Any]:
    monkeypatch.setattr(warm_up, "max_threads", lambda: NUM_CORES)
    return WarmUp(NUM_LANES), WatchedPlan(engine)


def test_a_start_runs_blank_batches_on_all_cores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    warmer, plan = made(monkeypatch, Engine.OPENVINO)
    warmer.run(plan)
    assert (plan.in_slots, plan.beside) == ([(NUM_CORES, 1)], [])


def test_lanes_run_blank_batches_at_the_same_time_and_without_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    warmer, plan = made(monkeypatch, Engine.OPENVINO)
    assert warmer.can_use_lanes(plan)
    warmer.run_on_lanes(plan)
    assert (plan.in_slots, plan.beside) == ([], [(NUM_CORES // NUM_LANES, NUM_LANES)] * NUM_LANES)


def test_where_costs_are_measured_single_images_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring runs larger batches, as far as they save time."""
    _, plan = made(monkeypatch, Engine.OPENVINO)
    for warmer in (WarmUp(NUM_LANES), WarmUp(NUM_LANES, measures=True)):
        warmer.run(plan)
        warmer.run_on_lanes(plan)
    assert plan.sizes == [(1, 8)] * (1 + NUM_LANES) + [(1,)] * (1 + NUM_LANES)


@pytest.mark.parametrize("what", ["a model that is traced for each batch size", "a GPU"])
def test_all_batch_sizes_run_where_each_must_be_prepared(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = made(monkeypatch, Engine.TORCH)
    if what == "a GPU":
        plan.model.device = Device("cuda:0")
        monkeypatch.setattr(warm_up, "Stream", lambda device: None)
    else:
        plan.model.network.has_one_graph = False
    WarmUp(NUM_LANES, measures=True).run(plan)
    assert plan.sizes == [(1, 8)]


def test_a_lane_of_one_core_is_too_slow_to_be_tried_for_the_default_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = made(monkeypatch, Engine.OPENVINO)
    monkeypatch.setattr(warm_up, "max_threads", lambda: NUM_LANES)
    warmer = WarmUp(NUM_LANES)
    assert not warmer.can_use_lanes(plan)
    plan.settings = StageSettings(lane_limit=Objective.THROUGHPUT.latency_limit)
    assert warmer.can_use_lanes(plan)


def test_torch_has_nothing_to_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    warmer, plan = made(monkeypatch, Engine.TORCH)
    warmer.run_on_lanes(plan)
    assert not warmer.prepares_lanes(plan)
    assert plan.beside == []
