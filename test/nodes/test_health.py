"""The health of a pipeline, report by report. The test decides the times."""

from __future__ import annotations

import math

import pytest
from diagnostic_msgs.msg import DiagnosticStatus

from split_infer_ros.msg import DropCount, PipelineReport
from split_infer_ros.nodes.health import UNHEARD, PipelineHealth

CAMERA_S = 5.0
FLOWS = DiagnosticStatus.OK, "Frames flow."
SILENT = "No frame has come in for 8 s: does the camera run?"


def report(received: int, published: int, failure: str = "", in_flight: int = 0, **dropped: int) -> PipelineReport:
    names = [DropCount(reason=name, count=count) for name, count in dropped.items()]
    return PipelineReport(received=received, published=published, in_flight=in_flight, dropped=names, failure=failure)


def test_lasting_failure_is_named_until_frames_flow() -> None:
    health = PipelineHealth(report(2, 1, corrupt_image=1), 0.0)
    assert health.diagnose(0.5, CAMERA_S) == FLOWS
    for second in range(1, 6):
        health.update(report(2 + second, 1, "Layer 'a' is gone.", corrupt_image=1, weights_unreadable=second), second)
    assert health.diagnose(5.0, CAMERA_S) == (
        DiagnosticStatus.ERROR,
        "Frames come in and none goes out; dropped as weights_unreadable. Layer 'a' is gone.",
    )
    health.update(report(8, 2, corrupt_image=1, weights_unreadable=5), 6.0)
    assert health.diagnose(6.0, CAMERA_S) == FLOWS


def test_stall_is_reported_while_frames_wait() -> None:
    """One batch in ten seconds fails. Meanwhile newer frames replace older ones."""
    health = PipelineHealth(report(1, 1), 0.0)
    health.update(report(20, 1, in_flight=2, overrun=17), 9.0)
    assert health.diagnose(9.0, CAMERA_S) == FLOWS, "a slow model is no failure"
    for second in (10.0, 14.0, 19.0):
        received = 2 * int(second)
        health.update(report(received, 1, "It stalls.", 2, overrun=received - 4, weights_stalled=1), second)
        level, words = health.diagnose(second, CAMERA_S)
        assert level == DiagnosticStatus.ERROR
        assert words.endswith("dropped as weights_stalled. It stalls.")


def busy(time: float, backbone_s: float, head_s: float, received: int = 0) -> PipelineReport:
    return PipelineReport(time=time, received=received, backbone_busy_s=backbone_s, head_busy_s=head_s)


def test_busy_is_a_share_of_time_between_reports() -> None:
    health = PipelineHealth(busy(10.0, 3.0, 1.0), 0.0)
    health.update(busy(10.5, 3.2, 1.0), 0.5)
    health.update(busy(12.0, 4.5, 1.5), 2.0)  # a lost message in between would change nothing
    stats = health.take_rates()
    assert (stats.period_s, stats.backbone_busy, stats.head_busy) == pytest.approx((2.0, 0.75, 0.25))
    assert math.isnan(stats.joules_per_image)
    facts = health.diagnostic_values(stats)
    assert (facts["backbone busy (%)"], facts["head busy (%)"]) == ("75", "25")
    health.update(busy(13.0, 4.5, 2.5), 3.0)
    stats = health.take_rates()
    assert (stats.backbone_busy, stats.head_busy) == pytest.approx((0.0, 1.0))


def test_restarted_backbone_has_no_rates_until_next_report() -> None:
    health = PipelineHealth(busy(10.0, 3.0, 1.0), 0.0)
    health.update(busy(12.0, 0.5, 0.25, received=7), 2.0)  # more frames in two seconds than before in all
    assert health.take_rates().period_s == 0
    health.update(busy(13.0, 1.0, 0.5, received=9), 3.0)
    stats = health.take_rates()
    assert (stats.backbone_busy, stats.head_busy) == pytest.approx((0.5, 0.25))


@pytest.mark.parametrize(("name", "level"), [("paused", DiagnosticStatus.OK), ("lease_expired", DiagnosticStatus.WARN)])
def test_intended_drops_are_no_failure(name: str, level: bytes) -> None:
    health = PipelineHealth(report(1, 1), 0.0)
    for second in range(1, 6):
        health.update(report(1 + second, 1, **{name: second}), second)
    found, words = health.diagnose(5.0, CAMERA_S)
    assert found == level
    assert (name in words) == (level == DiagnosticStatus.WARN)


def test_a_lazy_pipeline_that_nobody_listens_to_is_well() -> None:
    """Batches in flight when the last subscriber left are dropped as ``no_head``, which is no failure then."""
    health = PipelineHealth(report(1, 1), 0.0)
    for second in range(1, 6):
        health.update(report(2 + second, 1, no_head=1, nobody_listens=second), second)
    assert health.diagnose(5.0, CAMERA_S) == (DiagnosticStatus.OK, UNHEARD)
    health.update(report(8, 2, no_head=1, nobody_listens=5), 6.0)
    assert health.diagnose(6.0, CAMERA_S) == FLOWS


@pytest.mark.parametrize(
    ("tenant", "ended", "level", "words"),
    [
        ("", "", DiagnosticStatus.WARN, SILENT),
        ("", "bag:drive", DiagnosticStatus.OK, "bag:drive has ended. The last frame came in 8 s ago."),
        (
            "front",
            "bag:x",
            DiagnosticStatus.WARN,
            f"{SILENT} bag:x has ended.",
        ),
    ],
)
def test_source_that_ended_is_no_silent_camera(tenant: str, ended: str, level: bytes, words: str) -> None:
    """A tenant's camera may be another one than that which ended."""
    health = PipelineHealth(PipelineReport(tenant=tenant), 0.0)
    health.update(PipelineReport(tenant=tenant, received=3, published=3), 1.0)
    health.update(PipelineReport(tenant=tenant, received=3, published=3), 9.0)
    assert health.diagnose(9.0, CAMERA_S, ended) == (level, words)
    health.update(PipelineReport(tenant=tenant, received=4, published=4), 10.0)
    assert health.diagnose(10.0, CAMERA_S, ended) == FLOWS
