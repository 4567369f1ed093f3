"""The parameters ``backbone_cores`` and ``head_cores``."""

from __future__ import annotations

import os
import threading

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import image, wait_until
from sensor_msgs.msg import Image

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.msg import PipelineReport
from split_infer_ros.runtime.cores import Cores

ALLOWED = frozenset(os.sched_getaffinity(0))
FIRST, LAST = str(min(ALLOWED)), str(max(ALLOWED))
pytestmark = pytest.mark.skipif(len(ALLOWED) < 2, reason="this process may use one core only")


def cores_of(thread: str) -> set[int]:
    """Returns the cores of the thread with this name."""
    return next(os.sched_getaffinity(each.native_id) for each in threading.enumerate() if each.name == thread)


def test_each_stage_runs_on_its_cores(context: Context) -> None:
    parameters = {"backbone_cores": FIRST, "head_cores": LAST}
    with Pipeline(context, head={"head_cores": LAST}, backbone=parameters) as pipeline:
        pipeline.client.publisher(Image, "image").publish(image())
        assert pipeline.settled(1).published == 1
        assert (cores_of("dispatch"), cores_of("head")) == ({int(FIRST)}, {int(LAST)})
        (refusal,) = pipeline.client.set("backbone", backbone_cores=LAST)
        assert "backbone_cores" in refusal


def test_tenants_have_them_too(context: Context) -> None:
    tenants = {"tenants": ["front"], "tenant.front.model": "shapes", "tenant.front.weights": "none"}
    with Pipeline(context, tenants={**tenants, "backbone_cores": FIRST, "head_cores": LAST}) as pipeline:
        wait_until(lambda: "front" in pipeline.nodes["tenants"].running, "the tenant")
        assert (cores_of("dispatch"), cores_of("head")) == ({int(FIRST)}, {int(LAST)})


@pytest.mark.parametrize(("node", "parameter"), [("backbone", "backbone_cores"), ("head", "head_cores")])
def test_cores_that_do_not_exist_are_refused(context: Context, node: str, parameter: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{parameter} cannot be '8000'; this process may use"):
        Pipeline(context, **{node: {parameter: "8000"}}).close()


def test_lost_cores_are_reported(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cores, "fault", property(lambda self: f"{self.name} {self} is gone." if self else ""))
    with Pipeline(context, head={"head_cores": LAST}, backbone={"backbone_cores": FIRST}) as pipeline:
        statuses = pipeline.client.subscribe(DiagnosticArray, "/diagnostics")
        reports = pipeline.client.subscribe(PipelineReport, "report")
        assert reports.wait_for(1)[0].fault == f"backbone_cores {FIRST} is gone."
        (status,) = statuses.wait_for(1)[0].status
        assert (status.level, status.message) == (DiagnosticStatus.WARN, f"head_cores {LAST} is gone.")
