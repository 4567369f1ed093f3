"""Lanes of ONNX Runtime and OpenVINO: nothing is made for them before frames come fast."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tenant_server import until, use_lanes
from two_branch_net import CPU, SIDE, two_roads

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.server import lane_use
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.server import Server
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant

for package in ("onnx", "onnxscript", "onnxruntime", "openvino"):
    pytest.importorskip(package)

ENGINES = (Engine.ONNXRUNTIME, Engine.OPENVINO)
PICTURES = np.random.default_rng(1).integers(0, 256, (4, SIDE, SIDE, 3), dtype=np.uint8)
SETTINGS = StageSettings(drop_policy=DropPolicy.BLOCK, lane_limit=math.inf, batch_timeout_s=0.001)
NUM_LANES = 2


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Has every batch want a lane from the first one on. Gives the plans that were prepared, once for each lane."""
    use_lanes(monkeypatch, True)
    monkeypatch.setattr(lane_use, "MISSED", len(PICTURES))
    monkeypatch.setattr(lane_use, "MISSED_S", 0.0)
    found: list[Plan] = []
    warm_up_beside = Plan.warm_up_beside

    def note(plan: Plan, sizes: Sequence[int]) -> None:
        warm_up_beside(plan, sizes)
        found.append(plan)

    monkeypatch.setattr(Plan, "warm_up_beside", note)
    return found


def scores(results: Sequence[Detections]) -> list[list[float]]:
    return [detections.scores[detections.labels.argsort()].tolist() for detections in results]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pipeline_prepares_lanes_when_frames_come_fast(engine: Engine, prepared: list[Plan]) -> None:
    model = two_roads(ExecutionConfig(engine=engine))
    with LocalPipeline(model, SETTINGS, limits=Limits(score_threshold=0.0)) as pipeline:
        assert prepared == []
        found = [scores([result.detections for result in pipeline.run(PICTURES)])]
        until(lambda: pipeline.backbone.plan.has_lanes)
        assert len(prepared) == NUM_LANES
        found.append(scores([result.detections for result in pipeline.run(PICTURES)]))
        pipeline.backbone.configure(replace(SETTINGS, batch_size=2))
        assert pipeline.backbone.plan.has_lanes, "a new plan has lanes when it takes effect"
        assert len(prepared) == 2 * NUM_LANES
        found.append(scores([result.detections for result in pipeline.run(PICTURES)]))
    for later in found[1:]:
        np.testing.assert_allclose(later, found[0], rtol=0, atol=1e-5)
    assert pipeline.notices == []


@pytest.mark.parametrize("engine", ENGINES)
def test_tenants_measure_lanes_once_these_are_prepared(engine: Engine, prepared: list[Plan], tmp_path: Path) -> None:
    errors: list[Exception] = []
    server = Server(
        SharedSettings(device="cpu", batch_size=1, max_waiting=20),
        *(Limits(), lambda *result: None, lambda name, error: errors.append(error)),
        device=CPU,
        open_model=lambda tenant, settings: OpenedModel(two_roads(ExecutionConfig(engine=engine))),
        database=Database(tmp_path / "costs"),
    )
    assert server.set_tenants([Tenant("front", "two_roads")]) == {}
    server.start()
    try:
        until(lambda: server.view.is_measured)
        assert (list(server.view.costs.whole.alone_s), list(server.view.costs.lane.alone_s)) == (["two_roads"], [])
        assert prepared == []
        for number, picture in enumerate(PICTURES):
            server.intake("front").submit(Pixels(picture, RGB), Origin(number, "front", SIDE, SIDE), time.monotonic())
        until(lambda: server.view.is_measured and "two_roads" in server.view.costs.lane.alone_s)
        assert len(prepared) == NUM_LANES
    finally:
        server.stop(10.0)
        server.close()
    assert errors == []


def test_lanes_that_cannot_be_prepared_cost_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(plan: Plan, sizes: Sequence[int]) -> None:
        raise MemoryError("no room for lanes")

    monkeypatch.setattr(Plan, "warm_up_beside", fail)
    with LocalPipeline(two_roads(ExecutionConfig(engine=Engine.ONNXRUNTIME)), SETTINGS) as pipeline:
        for _ in range(3):
            assert len(list(pipeline.run(PICTURES))) == len(PICTURES)
        until(lambda: bool(pipeline.notices))
    assert pipeline.notices == ["two_roads computes no two batches at the same time (no room for lanes)."]
