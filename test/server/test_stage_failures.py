"""Failures of the backbone, the head or the way between them cost only the frames concerned."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from brightness_models import LONG_S
from tenant_server import until
from torch import Tensor
from two_stages import ENTRY, Brightness, Stages, Start, frame

from split_infer_ros.buffers.pool import SlotPool, find_pool
from split_infer_ros.buffers.slots import Lease
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import HandleError, SplitInferError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.candidates import Candidates, suppress
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.settings import DropPolicy
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork


def test_frames_without_a_head_are_dropped_as_no_head(start: Start) -> None:
    pipeline = start()
    pipeline.transport.publish = lambda handle: 0
    pipeline.send(1, 2, 3)
    pipeline.settle()
    assert set(pipeline.backbone.ledger.counts().dropped) <= {"no_head", "overrun"}
    until(lambda: pipeline.backbone.report(0.0).slots_used == 0)


def test_head_that_never_takes_a_batch_loses_its_lease(start: Start) -> None:
    pipeline = start(lease_s=0.01, pool_slots=1)
    unread = pipeline.keep_unread()
    pipeline.send(1)
    pipeline.settle()
    assert pipeline.backbone.ledger.counts().dropped == {"lease_expired": 1}
    assert pipeline.backbone.report(time.monotonic()).batches == 0  # a lost batch has no times
    pipeline.submit_to_head(unread[0])  # the head reads it after all
    until(lambda: pipeline.head.refused.total() == 1)
    assert pipeline.head.refused == {"released": 1}
    assert isinstance(pipeline.errors[0], HandleError)
    pipeline.transport.publish = pipeline.publish
    pipeline.backbone.plan.pool.leases.lease_s = LONG_S  # for a living head that a busy machine holds up
    pipeline.send(2)
    pipeline.settle()
    pipeline.submit_to_head(unread[0])
    until(lambda: pipeline.head.refused.total() == 2)
    assert pipeline.head.refused == {"released": 1, "stale": 1}


def test_handle_is_read_once(start: Start) -> None:
    pipeline = start()
    pipeline.send(1)
    pipeline.settle()
    pipeline.submit_to_head(pipeline.handles[0])
    until(lambda: pipeline.head.refused.total() == 1)
    pool = find_pool(pipeline.handles[0].lease)
    for lease in (Lease(1, 0, 1), replace(pipeline.handles[0].lease, slot=99)):
        pipeline.head.submit(replace(pipeline.handles[0], lease=lease, split_point="input", origins=()), pool)
    until(lambda: pipeline.head.refused.total() == 3)
    assert pipeline.head.refused == {"released": 1, "foreign": 2}
    with pytest.raises(HandleError) as refusal:
        find_pool(Lease(1, 0, 1))
    pipeline.head.refuse(refusal.value)
    assert pipeline.head.refused == {"released": 1, "foreign": 3}
    pipeline.check_results()


def test_backbone_error_costs_one_batch(start: Start) -> None:
    pipeline = start()
    broken = Pixels(np.zeros((4, 4, 2), np.uint8), (0, 1, 2))
    pipeline.backbone.intake.submit(broken, frame(0)[1], time.monotonic())
    pipeline.settle()
    assert pipeline.backbone.ledger.counts().dropped == {"backbone_error": 1}
    assert len(pipeline.errors) == 1
    pipeline.send(7)
    pipeline.settle()
    pipeline.check_results()
    assert len(pipeline.delivered) == 1


def test_delivery_error_costs_the_rest_of_its_batch(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = start(batch_size=3, batch_timeout_s=LONG_S)

    def deliver(handle: Handle, index: int, detections: Detections) -> None:
        origin = handle.origins[index]
        if origin.header == 2:
            raise RuntimeError("delivery failed")
        pipeline.delivered.append((origin, detections))

    monkeypatch.setattr(pipeline, "deliver", deliver)
    pipeline.send(1, 2, 3)
    pipeline.settle()
    assert pipeline.backbone.ledger.counts().dropped == {"head_error": 2}
    pipeline.send(4, 5, 6)
    pipeline.settle()
    pipeline.check_results()
    assert [origin.header for origin, _ in pipeline.delivered] == [1, 4, 5, 6]
    assert [str(error) for error in pipeline.errors] == ["delivery failed"]


@pytest.mark.parametrize("method", ["take", "release"])
def test_slot_that_cannot_be_reached_ends_no_thread(start: Start, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    pipeline = start()
    failures, call = [OSError("no lock is left")], getattr(SlotPool, method)

    def fail_once(pool: SlotPool, *arguments: object) -> None:
        if failures:
            raise failures.pop()
        call(pool, *arguments)

    monkeypatch.setattr(SlotPool, method, fail_once)
    pipeline.send(1)
    until(lambda: len(pipeline.errors) == 1)
    pipeline.send(2)
    until(lambda: pipeline.backbone.ledger.counts().published == 1)
    pipeline.backbone.instance.abandon(DropReason.LEASE_EXPIRED)  # the slot of the first frame is not given back
    assert [str(error) for error in pipeline.errors] == ["no lock is left"]
    assert pipeline.backbone.ledger.counts().in_flight == 0


def test_impossible_detections_are_left_out_and_counted(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode_all(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, torch.nan, 4.0, 4.0], [0.0, 0.0, 4.0, 4.0]])
        labels = torch.tensor([0, 0, 1])  # there is no label 1
        return [Detections(boxes, torch.full((3,), 0.5), labels) for _ in outputs[0]]

    pipeline = start(batch_size=2, batch_timeout_s=LONG_S)
    monkeypatch.setattr(pipeline.head, "_model", with_decode(decode_all))
    pipeline.send(1, 2)
    pipeline.settle()
    assert [found.boxes.tolist() for _, found in pipeline.delivered] == [[[0.0, 0.0, 4.0, 4.0]]] * 2
    assert pipeline.head.left_out == {"box_not_finite": 2, "unknown_label": 2}
    assert pipeline.errors == []


def test_candidates_beyond_memory_cost_one_batch(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode_too_many(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        return suppress(Candidates(torch.empty((1, 1 << 56, 4)), outputs[0]), limits)

    pipeline = start()
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.head, "_model", with_decode(decode_too_many))
        pipeline.send(1)
        pipeline.settle()
    assert pipeline.backbone.ledger.counts().dropped == {"head_error": 1}
    assert "memory" in str(pipeline.errors[0])
    pipeline.send(2)
    pipeline.settle()
    pipeline.check_results()
    assert [origin.header for origin, _ in pipeline.delivered] == [2]


def with_decode(function: Callable[[tuple[Tensor, ...], Limits], list[Detections]]) -> SplitModel:
    return SplitModel(TorchNetwork(replace(ENTRY, decode=function), Brightness()))


def test_publishing_error_keeps_batches_that_a_head_has(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first handle reaches the head before publishing fails, the second does not."""
    pipeline = start(batch_size=1, drop_policy=DropPolicy.BLOCK)
    arrived = threading.Event()

    def deliver(handle: Handle, index: int, detections: Detections) -> None:
        arrived.set()
        Stages.deliver(pipeline, handle, index, detections)

    def publish(handle: Handle) -> int:
        if handle.origins[0].header == 1:
            pipeline.submit_to_head(handle)
            assert arrived.wait(LONG_S)
        raise RuntimeError("sending failed")

    monkeypatch.setattr(pipeline, "deliver", deliver)
    pipeline.gate.clear()
    pipeline.transport.publish = publish
    pipeline.send(1)
    until(lambda: len(pipeline.errors) == 1)
    pipeline.send(2)
    until(lambda: len(pipeline.errors) == 2)
    assert pipeline.backbone.ledger.counts().dropped == {"backbone_error": 1}
    pipeline.gate.set()
    pipeline.settle()
    pipeline.check_results()
    assert [origin.header for origin, _ in pipeline.delivered] == [1]


def test_handle_of_another_model_is_refused_by_name(start: Start) -> None:
    pipeline = start()
    pipeline.transport.publish = lambda handle: pipeline.publish(replace(handle, model="other"))
    pipeline.send(1)
    pipeline.settle()
    assert pipeline.backbone.ledger.counts().dropped == {"head_error": 1}
    (error,) = pipeline.errors
    assert isinstance(error, SplitInferError)
    assert "'other'" in str(error)
    assert "'brightness'" in str(error)
