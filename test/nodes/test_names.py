"""Users choose namespaces, names and topics: pipelines run side by side, nodes and topics are renamed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.context import Context
from ros_processes import LIGHT, Process
from ros_support import START_S, Client, wait_until
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from split_infer_ros.msg import PipelineReport

QUICK = ("--ros-args", *LIGHT, "-p", "width:=64", "-p", "height:=48", "-p", "rate_hz:=10.0")
pytestmark = pytest.mark.timeout(4 * START_S)


@pytest.fixture
def client(context: Context) -> Iterator[Client]:
    found = Client(context)
    yield found
    found.close()


def is_closed(report: PipelineReport) -> bool:
    """Returns whether every frame of a report is accounted for."""
    return report.received == report.published + sum(drop.count for drop in report.dropped) + report.in_flight


def test_pipelines_in_two_namespaces_are_independent(client: Client) -> None:
    sides = ("left", "right")
    left, right = (Process("pipeline", *QUICK, "-p", f"frame_id:={side}", "-r", f"__ns:=/{side}") for side in sides)
    with left, right:
        for side in sides:
            found = client.subscribe(Detection2DArray, f"/{side}/detections").wait_for(10, START_S)
            assert {message.header.frame_id for message in found} == {side}
            report = client.subscribe(PipelineReport, f"/{side}/report").wait_for_one(
                lambda report: report.published >= 10, "ten frames published", START_S
            )
            assert is_closed(report)
            assert {drop.reason for drop in report.dropped} <= {"overrun"}
        assert client.set("/left/backbone", batch_size=3) == [""]
        assert client.get("/right/backbone", "batch_size") == 0


def test_command_line_renames_nodes_and_topics(client: Client) -> None:
    names = ("backbone:__node:=eyes", "head:__node:=mind", "image:=/front/picture", "detections:=/found/things")
    remaps = [word for name in names for word in ("-r", name)]
    with Process("pipeline", *QUICK, *remaps) as process:
        client.subscribe(Detection2DArray, "/found/things").wait_for(3, START_S)
        client.subscribe(Image, "/front/picture").wait_for(1)
        for name in ("eyes", "mind", "camera", "stats"):
            assert client.state(name) == "active"
        assert {"backbone", "head"}.isdisjoint(client.node.get_node_names())
        assert client.set("eyes", batch_size=2) == [""]
        assert process.runs


@pytest.mark.parametrize("transport", ["intra_process", "shared_memory"])
def test_two_pipelines_of_one_name_cause_a_warning(client: Client, transport: str) -> None:
    """Each pipeline receives the other's images too. Both warn about it, and their ledgers stay closed."""
    arguments = (*QUICK, "-p", f"transport:={transport}", "-p", "rate_hz:=3.0")  # both run for ten seconds
    with Process("pipeline", *arguments) as one, Process("pipeline", *arguments) as other:
        diagnostics = client.subscribe(DiagnosticArray, "/diagnostics")
        status = diagnostics.wait_for_one(
            lambda array: "backbones report on /report" in array.status[0].message, "a warning", START_S
        ).status[0]
        assert status.level == DiagnosticStatus.WARN
        assert "__ns:=" in status.message
        wait_until(lambda: "backbones report" in one.printed + other.printed, "the same in the log")
        reports = client.subscribe(PipelineReport, "report").wait_for(20, START_S)
        assert all(is_closed(report) for report in reports)
        known = {"overrun", "middleware", "stale", "busy", "foreign", "lease_expired", "head_error"}
        assert {drop.reason for report in reports for drop in report.dropped} <= known
        assert min(sorted(report.published for report in reports)[-2:]) > 0
        assert one.runs
        assert other.runs
