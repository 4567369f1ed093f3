"""Both stages start, stop and start again. Every frame is accounted for."""

from __future__ import annotations

from brightness_models import LONG_S
from tenant_server import until
from two_stages import FakeTransport, Start, brightness, frame

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.server.settings import DropPolicy, StageSettings


def test_frames_outside_of_start_and_stop_are_inactive(start: Start) -> None:
    pipeline = start()
    idle = BackboneStage(
        brightness(),
        settings=StageSettings(),
        transport=FakeTransport(pipeline.publish),
        on_error=pipeline.errors.append,
    )
    idle.intake.submit(*frame(1), 0.0)
    idle.intake.refuse(ImageError(DropReason.BAD_STEP, "no"), 0.0)
    assert idle.ledger.counts().dropped == {"inactive": 1, "bad_step": 1}
    idle.stop(0.0)
    pipeline.backbone.stop(LONG_S)
    pipeline.send(1)
    assert pipeline.backbone.ledger.counts().dropped == {"inactive": 1}


def test_stop_finishes_frames_in_flight(start: Start) -> None:
    pipeline = start(batch_size=4, batch_timeout_s=LONG_S)
    pipeline.send(1, 2, 3)  # draining closes a batch that is not full
    pipeline.backbone.stop(LONG_S)
    pipeline.check_results()
    assert len(pipeline.delivered) == 3


def test_stage_starts_again_after_a_stuck_head(start: Start) -> None:
    pipeline = start(batch_size=1, pool_slots=3, drop_policy=DropPolicy.BLOCK)
    pipeline.gate.clear()
    pipeline.send(1, 2, 3, 4, 5)
    until(lambda: len(pipeline.handles) == 3)
    pipeline.backbone.stop(0.01)
    counts = pipeline.backbone.ledger.counts()
    assert counts.dropped == {"shutdown": 5}
    assert counts.balanced
    pipeline.gate.set()  # the head goes on, and its leases are gone
    until(lambda: pipeline.backbone.report(0.0).slots_used == 0)
    assert pipeline.backbone.ledger.counts() == counts
    pipeline.delivered.clear()
    pipeline.backbone.start()
    pipeline.send(6, 7)
    pipeline.settle()
    pipeline.check_results()
    assert [origin.header for origin, _ in pipeline.delivered] == [6, 7]


def test_stop_takes_slots_back_from_an_absent_head(start: Start) -> None:
    pipeline = start(batch_size=1, pool_slots=2, drop_policy=DropPolicy.BLOCK)
    unread = pipeline.keep_unread()
    pipeline.send(1, 2, 3)
    until(lambda: len(unread) == 2)
    pipeline.backbone.stop(0.01)
    assert pipeline.backbone.report(0.0).slots_used == 0
    assert pipeline.backbone.ledger.counts().dropped == {"shutdown": 3}


def test_head_starts_again_after_several_stops(start: Start) -> None:
    pipeline = start()
    for value in range(3):
        pipeline.head.stop()
        pipeline.head.stop()
        pipeline.head.start()
        pipeline.send(value)
        pipeline.settle()
    pipeline.check_results()
    assert len(pipeline.delivered) == 3
