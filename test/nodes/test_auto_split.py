"""``split_point: auto`` measures at its first start, keeps the measurements, and follows drift."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import Received, wait_until
from vision_msgs.msg import Detection2DArray

from split_infer_ros.autotuning.profile_trials import ProfileTrials
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.msg import PipelineReport
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.profiling.profiler import Profiler
from split_infer_ros.server.profiling.stored_profile import profile_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.planner import Objective, plan

CAMERA = {"width": 64, "height": 48, "rate_hz": 50.0}
AUTO = {"split_point": "auto", "batch_size": 2, "weights": "none", "engine": "torch", "improve": "before_start"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tuning") / "tuning.jsonl"


def listening(pipeline: Pipeline) -> tuple[Received, Received]:
    return pipeline.client.subscribe(Detection2DArray, "detections"), pipeline.client.subscribe(
        PipelineReport, "report"
    )


def test_first_start_measures_and_takes_the_best(
    context: Context, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("split_infer_ros.nodes.backbone_pipeline.DWELL_S", 1e6)  # no drift moves the split meanwhile
    backbone = {**AUTO, "tuning_database": str(database)}
    with Pipeline(context, stats={}, head={"weights": "none"}, backbone=backbone, camera=CAMERA) as pipeline:
        assert len(database.read_text().splitlines()) > 10
        detections, reports = listening(pipeline)
        detections.wait_for(3)
        model = pipeline.backbone.model
        profile = profile_model(Profiler(model), [2], Database(database), may_measure=False)
        report = reports.wait_for(1)[0]
        best = plan(profile, Objective.BALANCED)
        assert (report.split_point, report.batch_size) == (best.split_point, 2)
        assert pipeline.client.get("backbone", "split_point") == "auto"

        assert pipeline.client.set("backbone", objective=Objective.LATENCY.value) == [""]
        best = plan(profile, Objective.LATENCY)
        assert pipeline.backbone.stage.settings.split_point == best.split_point

        assert pipeline.client.set("backbone", split_point="neck") == [""]
        reports.wait_for_one(lambda report: report.split_point == "neck", "a report that says neck")
        (reason,) = pipeline.client.set("backbone", batch_size=3)
        assert reason == ""
        reason = pipeline.client.set_all("backbone", split_point="auto", batch_size=5)
        assert "not measured yet on this machine at batch size 5" in reason
        assert pipeline.backbone.stage.settings.batch_size == 3
        assert pipeline.client.set_all("backbone", split_point="auto", batch_size=2) == ""
        assert pipeline.backbone.stage.settings.batch_size == 2
        pipeline.nodes["camera"].trigger_deactivate()
        assert set(pipeline.settled(0).dropped) <= {"overrun"}


def test_in_the_background_a_first_start_serves_before_it_measures(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring, may_end = threading.Event(), threading.Event()

    def find(profiles: ProfileTrials, model: SplitModel, sizes: Sequence[int], is_over: Callable[[], bool]) -> None:
        measuring.set()
        may_end.wait(60)
        raise ConfigurationError("It is never measured.")

    monkeypatch.setattr(ProfileTrials, "find", find)
    backbone = {**AUTO, "improve": "background", "tuning_database": str(tmp_path / "tuning.jsonl")}
    with Pipeline(context, stats={}, head={"weights": "none"}, backbone=backbone, camera=CAMERA) as pipeline:
        detections, reports = listening(pipeline)
        detections.wait_for(30)
        default = pipeline.backbone.model.split_point("default").name
        assert reports.wait_for(1)[0].split_point == default
        wait_until(measuring.is_set, lambda: "the trial", 60)
        detections.clear()
        detections.wait_for(3)
        may_end.set()
        reports.wait_for_one(lambda report: "not compared" in report.improvement, "a report that says so")


def test_second_start_measures_nothing_and_split_follows_drift(
    context: Context, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the backbone becomes much slower than it was measured, all work goes to the head."""
    if not database.exists():  # this test runs alone
        backbone = {**AUTO, "tuning_database": str(database)}
        Pipeline(context, head={"weights": "none"}, backbone=backbone).close()
    written = database.read_text()
    run = Plan.run

    def slowly(plan: Plan, *batch: Any, **how: Any) -> Any:
        if plan.split_point.name != "input":
            time.sleep(0.5)
        return run(plan, *batch, **how)

    monkeypatch.setattr(Plan, "run", slowly)
    monkeypatch.setattr("split_infer_ros.nodes.backbone_pipeline.DWELL_S", 0.3)
    backbone = {**AUTO, "objective": Objective.LATENCY.value, "tuning_database": str(database)}
    with Pipeline(context, stats={}, head={"weights": "none"}, backbone=backbone, camera=CAMERA) as pipeline:
        assert database.read_text() == written
        stage = pipeline.backbone.stage
        detections, reports = listening(pipeline)
        wait_until(lambda: stage.settings.split_point == "input", lambda: str(stage.settings), 60)
        reports.wait_for_one(lambda report: report.split_point == "input", "a report that says so")
        detections.clear()
        detections.wait_for(3)
        pipeline.nodes["camera"].trigger_deactivate()
        counts = pipeline.settled(0)
        assert counts.balanced
        assert set(counts.dropped) <= {"overrun"}
