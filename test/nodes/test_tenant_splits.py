"""``split_point: auto`` of tenants: each model is measured once, split where it is best, and moved alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import wait_until
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from split_infer_ros.measurements.database import Database
from split_infer_ros.msg import PipelineReport
from split_infer_ros.server import model_splits
from split_infer_ros.server.profiling.profiler import Profiler
from split_infer_ros.server.profiling.stored_profile import profile_model
from split_infer_ros.server.server import Server
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.planner import Objective, plan

BATCH_SIZE = 2
KEY = "shapes with weights none"
TENANTS = {
    "tenants": ["front"],
    "tenant.front.model": "shapes",
    "tenant.front.weights": "none",
    "engine": "torch",
    "improve": "before_start",
    "max_batch_size": BATCH_SIZE,
    "split_point": "auto",
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tuning") / "tuning.jsonl"


def server_of(pipeline: Pipeline) -> Server:
    return pipeline.nodes["tenants"].pipeline  # type: ignore[attr-defined, no-any-return]


def split_point_of(pipeline: Pipeline) -> str:
    return server_of(pipeline).view.models[KEY].plan.split_point.name


def profiles_in(database: Path) -> list[str]:
    return [line for line in database.read_text().splitlines() if '"split_points"' in line]


def test_first_start_measures_and_takes_the_best(
    context: Context, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_splits, "DWELL_S", 1e6)  # no drift moves the split meanwhile
    with Pipeline(context, tenants={**TENANTS, "tuning_database": str(database)}) as pipeline:
        client, model = pipeline.client, server_of(pipeline).view.models[KEY].instance.model
        assert profiles_in(database)
        profile = profile_model(Profiler(model), [1, BATCH_SIZE], Database(database), may_measure=False)
        best = {kind: plan(profile, kind, batch_sizes=[BATCH_SIZE]).split_point for kind in Objective}
        assert split_point_of(pipeline) == best[Objective.BALANCED]
        reports = client.subscribe(PipelineReport, "report")
        reports.wait_for_one(lambda report: report.split_point == split_point_of(pipeline), "a report that says so")
        assert client.get("tenants", "split_point") == "auto"

        assert client.set("tenants", objective=Objective.LATENCY.value) == [""]
        assert split_point_of(pipeline) == best[Objective.LATENCY]
        assert client.set("tenants", split_point="neck") == [""]
        reports.wait_for_one(lambda report: report.split_point == "neck", "a report that says neck")
        assert client.set("tenants", max_batch_size=3) == [""]
        reason = client.set_all("tenants", split_point="auto")
        assert "not measured yet on this machine at batch size 3" in reason
        assert split_point_of(pipeline) == "neck"
        assert client.set_all("tenants", split_point="auto", max_batch_size=BATCH_SIZE, latency_bound_ms=1e-3) == ""
        assert split_point_of(pipeline) == best[Objective.LATENCY]
        assert "takes one of: throughput, balanced, latency" in client.set("tenants", objective="speed")[0]


def test_second_start_measures_nothing_and_split_follows_drift(
    context: Context, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the backbone becomes much slower than it was measured, all work goes to the head."""
    if not database.exists():  # this test runs alone
        Pipeline(context, tenants={**TENANTS, "tuning_database": str(database)}).close()
    written = profiles_in(database)
    backbone = SplitModel.backbone

    def slowed(model: SplitModel, name: str) -> Callable[[Any], Sequence[Any]]:
        fast = backbone(model, name)

        def run(images: Any) -> Sequence[Any]:
            if name != "input":
                time.sleep(0.5)  # longer than a head of the whole network, on a busy machine too
            return fast(images)  # type: ignore[no-any-return]

        return run

    monkeypatch.setattr(SplitModel, "backbone", slowed)
    monkeypatch.setattr(model_splits, "DWELL_S", 0.3)
    values = {**TENANTS, "tuning_database": str(database), "objective": Objective.LATENCY.value}
    with Pipeline(context, tenants=values) as pipeline:
        assert profiles_in(database) == written
        server, client = server_of(pipeline), pipeline.client
        detections = client.subscribe(Detection2DArray, "front/detections")
        images = client.publisher(Image, "front/image")
        picture = Image(header=Header(frame_id="lens"), height=48, width=64, encoding="rgb8", step=192)
        picture.data = bytes(3 * 48 * 64)

        def is_at_input() -> bool:
            images.publish(picture)
            time.sleep(0.02)
            return split_point_of(pipeline) == "input"

        wait_until(is_at_input, lambda: split_point_of(pipeline), 60)
        detections.clear()
        images.publish(picture)
        detections.wait_for(1)
        wait_until(lambda: not server.view.ledger("front").counts().in_flight, "the last frame")
        counts = server.view.ledger("front").counts()
        assert counts.balanced
        assert set(counts.dropped) <= {"overrun"}
