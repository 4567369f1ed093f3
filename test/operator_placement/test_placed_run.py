"""Runs of a plan. Here GPU and CPU are two names of the CPU."""

from __future__ import annotations

import pytest
import torch
from networks import graph_of
from photographs import photograph_batch
from torch import Tensor

from split_infer_ros.measurements import turns
from split_infer_ros.operator_placement import placed_run
from split_infer_ros.operator_placement.operator_graph import read_operators, with_decode
from split_infer_ros.operator_placement.operator_list import OperatorList
from split_infer_ros.operator_placement.placed_run import PlacedRun, run_plan
from split_infer_ros.operator_placement.plan import PlacementPlan, make_plan
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec


def run_shapes(gpu: torch.device | None) -> PlacedRun:
    """Runs the model ``shapes`` as the list places it, on two photographs."""
    model = load_model(ModelSpec("shapes", device="cpu"))
    graph = with_decode(graph_of(model), model.entry)
    plan = make_plan(read_operators(graph, model.entry.image_shape), OperatorList.read())
    batch: Tensor = photograph_batch(*model.entry.image_shape[1:])[:2].contiguous(memory_format=torch.channels_last)
    return run_plan(graph, plan, [image.unsqueeze(0) for image in batch], gpu=gpu)


def test_without_a_gpu_results_are_compared_and_nothing_is_timed() -> None:
    found = run_shapes(None)
    assert found.images == 2
    assert found.detections > 0
    assert (found.images_that_differ, found.score_difference) == (0, 0.0), "the same kernels run on the same values"
    assert found.seconds is None


def test_with_a_gpu_both_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(turns, "MAX_TURNS", 2)
    found = run_shapes(torch.device("cpu", 0))
    assert found.seconds is not None
    assert [len(times) for times in found.seconds] == [2, 2]
    assert min(map(min, found.seconds)) > 0


def test_other_detections_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    apply_plan = placed_run.apply_plan
    made: list[object] = []

    def spoil_the_first(graph: object, plan: PlacementPlan, devices: object) -> object:
        placed = apply_plan(graph, plan, devices)  # type: ignore[arg-type]
        made.append(placed)
        return placed if len(made) > 1 else lambda image, limits: placed(torch.zeros_like(image), limits)

    monkeypatch.setattr(placed_run, "apply_plan", spoil_the_first)
    found = run_shapes(None)
    assert found.images_that_differ == 2
