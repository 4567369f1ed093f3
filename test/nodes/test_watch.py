"""What is said of a pipeline, report by report; times are the test's own."""

from __future__ import annotations

import pytest
from diagnostic_msgs.msg import DiagnosticStatus

from split_infer_ros.msg import DropCount, PipelineReport
from split_infer_ros.nodes.watch import Watch

CAMERA_S = 5.0
FLOWS = DiagnosticStatus.OK, "Frames flow."


def report(received: int, published: int, failure: str = "", in_flight: int = 0, **dropped: int) -> PipelineReport:
    names = [DropCount(reason=name, count=count) for name, count in dropped.items()]
    return PipelineReport(
        received=received, published=published, in_flight=in_flight, dropped=names, failure=failure
    )


def test_a_lasting_failure_is_said_by_name_and_sentence_until_frames_flow_again() -> None:
    watch = Watch(report(2, 1, corrupt_image=1), 0.0)
    assert watch.verdict(0.5, CAMERA_S) == FLOWS
    for second in range(1, 6):
        watch.hear(report(2 + second, 1, "Layer 'a' is gone.", corrupt_image=1, weights_unreadable=second), second)
    assert watch.verdict(5.0, CAMERA_S) == (
        DiagnosticStatus.ERROR,
        "Frames come in and none goes out; dropped as weights_unreadable. Layer 'a' is gone.",
    )
    watch.hear(report(8, 2, corrupt_image=1, weights_unreadable=5), 6.0)
    assert watch.verdict(6.0, CAMERA_S) == FLOWS


def test_a_stall_is_said_while_frames_wait_behind_it() -> None:
    """One batch in ten seconds fails; meanwhile newer frames take older ones' places."""
    watch = Watch(report(1, 1), 0.0)
    watch.hear(report(20, 1, in_flight=2, overrun=17), 9.0)
    assert watch.verdict(9.0, CAMERA_S) == FLOWS, "a slow model is no failure"
    for second in (10.0, 14.0, 19.0):
        received = 2 * int(second)
        watch.hear(report(received, 1, "It stalls.", 2, overrun=received - 4, weights_stalled=1), second)
        level, words = watch.verdict(second, CAMERA_S)
        assert level == DiagnosticStatus.ERROR
        assert words.endswith("dropped as weights_stalled. It stalls.")


@pytest.mark.parametrize(
    ("name", "level"), [("paused", DiagnosticStatus.OK), ("lease_expired", DiagnosticStatus.WARN)]
)
def test_frames_that_nobody_wants_are_no_failure(name: str, level: bytes) -> None:
    watch = Watch(report(1, 1), 0.0)
    for second in range(1, 6):
        watch.hear(report(1 + second, 1, **{name: second}), second)
    found, words = watch.verdict(5.0, CAMERA_S)
    assert found == level
    assert (name in words) == (level == DiagnosticStatus.WARN)
