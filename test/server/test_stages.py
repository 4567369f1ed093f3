"""Backbone and head stage together: results, overload, changes of settings, and what a frame costs."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from brightness_models import LONG_S, BrightModel
from tenant_server import until
from two_stages import RecordingHead, Start, brightness, frame

from split_infer_ros.buffers.slots import Outcome
from split_infer_ros.errors import ConfigurationError, UnknownSplitPointError
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.account import PipelineMeters
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.server.dispatcher import TICK_S
from split_infer_ros.server.execution_chooser import Choice, ExecutionChooser
from split_infer_ros.server.local_transport import LocalTransport
from split_infer_ros.server.model_instance import ModelInstance
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.server.timeline import Timeline
from split_infer_ros.telemetry.trace import TraceFile


@pytest.mark.parametrize("split_point", ["input", "default", "parts.1", "output"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_each_frame_gets_its_own_result(start: Start, split_point: str, batch_size: int) -> None:
    pipeline = start(split_point=split_point, batch_size=batch_size, drop_policy=DropPolicy.BLOCK, pool_slots=2)
    for value in range(40):
        assert pipeline.backbone.intake.wait_for_room(LONG_S)
        pipeline.send(value, source="ab"[value % 2])
    pipeline.settle()
    pipeline.check_results()
    assert [origin.header for origin, _ in pipeline.delivered] == list(range(40))
    assert pipeline.errors == []
    assert all(len(handle.origins) <= batch_size for handle in pipeline.handles)


def test_boxes_are_in_pixels_of_each_source(start: Start) -> None:
    pipeline = start(batch_size=3, batch_timeout_s=LONG_S)
    for height, width in ((8, 16), (1, 1), (480, 640)):
        pipeline.backbone.intake.submit(*frame(9, height, width), time.monotonic())
    pipeline.settle()
    boxes = [detections.boxes.tolist() for _, detections in pipeline.delivered]
    assert boxes == [[[0, 0, 16, 8]], [[0, 0, 1, 1]], [[0, 0, 640, 480]]]


def test_slow_head_drops_older_frames(start: Start) -> None:
    pipeline = start(batch_size=2, pool_slots=2, drop_policy=DropPolicy.LATEST)
    pipeline.gate.clear()
    pipeline.send(*range(100))
    counts = pipeline.backbone.ledger.counts()
    assert counts.balanced
    assert counts.in_flight <= 2 * (1 + 2)
    assert not pipeline.backbone.intake.is_full
    pipeline.gate.set()
    pipeline.settle()
    pipeline.check_results()
    assert set(pipeline.backbone.ledger.counts().dropped) == {"overrun"}
    headers = [origin.header for origin, _ in pipeline.delivered]
    assert headers == sorted(headers)
    assert headers[-1] == 99


def test_slow_head_makes_senders_wait(start: Start) -> None:
    pipeline = start(batch_size=1, pool_slots=1, drop_policy=DropPolicy.BLOCK)
    pipeline.gate.clear()
    pipeline.send(1)
    until(lambda: len(pipeline.handles) == 1)
    pipeline.send(2)
    assert pipeline.backbone.intake.is_full
    assert not pipeline.backbone.intake.wait_for_room(0.01)
    pipeline.gate.set()
    assert pipeline.backbone.intake.wait_for_room(LONG_S)
    pipeline.settle()
    pipeline.check_results()
    assert pipeline.backbone.ledger.counts().dropped == {}


def test_settings_change_while_frames_flow(start: Start) -> None:
    pipeline = start(batch_size=2, drop_policy=DropPolicy.BLOCK)
    changes = [
        StageSettings(
            split_point=split_point, batch_size=batch_size, batch_timeout_s=0.001, drop_policy=policy, pool_slots=slots
        )
        for split_point in ("input", "parts.1", "output")
        for batch_size, policy, slots in ((1, DropPolicy.BLOCK, 1), (4, DropPolicy.LATEST, 2))
    ]
    for value in range(240):
        if value % 20 == 0:
            pipeline.backbone.configure(changes[value // 20 % len(changes)])
            assert pipeline.backbone.settings == changes[value // 20 % len(changes)]
        pipeline.backbone.intake.wait_for_room(LONG_S)
        pipeline.send(value)
        assert pipeline.backbone.ledger.counts().balanced
    pipeline.settle()
    pipeline.check_results()
    assert {handle.split_point for handle in pipeline.handles} == {"input", "parts.1", "output"}
    assert set(pipeline.backbone.ledger.counts().dropped) <= {"overrun"}
    assert pipeline.errors == []


def test_refused_settings_change_nothing(start: Start) -> None:
    pipeline = start(batch_size=2)
    before = pipeline.backbone.settings
    with pytest.raises(UnknownSplitPointError, match=r"parts\.1"):
        pipeline.backbone.configure(replace(before, split_point="parts.9", batch_size=1))
    with pytest.raises(ConfigurationError, match="batch_size"):
        pipeline.backbone.configure(replace(before, batch_size=1 << 50))
    assert pipeline.backbone.settings is before
    pipeline.send(5)
    pipeline.settle()
    pipeline.check_results()


def test_settings_change_under_many_senders(start: Start) -> None:
    pipeline = start(batch_size=2, pool_slots=2)
    balanced: list[bool] = []

    def send(source: str) -> None:
        for value in range(100):
            pipeline.send(value, source=source)
            balanced.append(pipeline.backbone.ledger.counts().balanced)

    senders = [threading.Thread(target=send, args=(source,)) for source in "abc"]
    for sender in senders:
        sender.start()
    for number in range(20):
        pipeline.backbone.configure(
            StageSettings(
                split_point="input" if number % 2 else "output",
                batch_size=1 + number % 3,
                batch_timeout_s=0.001,
                drop_policy=DropPolicy.LATEST,
                pool_slots=1 + number % 2,
            )
        )
    for sender in senders:
        sender.join(LONG_S)
    pipeline.settle()
    pipeline.check_results()
    assert all(balanced)
    assert pipeline.backbone.ledger.counts().received == 300
    assert pipeline.errors == []


def test_report_has_counts_and_times(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.monotonic()
    pipeline = start(batch_size=2, batch_timeout_s=LONG_S, drop_policy=DropPolicy.BLOCK)
    timelines: list[Timeline] = []
    original = PipelineMeters.batch_done

    def batch_done(meters: PipelineMeters, timeline: Timeline, **others: Any) -> None:
        timelines.append(timeline)
        original(meters, timeline, **others)

    monkeypatch.setattr(PipelineMeters, "batch_done", batch_done)
    for pair in ((1, 2), (3, 4)):  # one batch after the other, so that their times in post-processing do not overlap
        pipeline.send(*pair)
        pipeline.settle()
    report = pipeline.backbone.report(time.monotonic())
    assert report.counts == pipeline.backbone.ledger.counts()
    assert (report.model, report.device, report.split_point) == ("brightness", "cpu", "parts.0")
    assert report.memory == "host"
    assert report.batches == len(pipeline.handles)
    assert report.batch_fill == 4 / report.batches
    assert report.slots_used == 0
    assert report.pool_bytes > 0
    assert len(timelines) == len(pipeline.handles)
    for times in timelines:
        stations = dataclasses.astuple(times)
        assert stations[0] > 0
        assert list(stations) == sorted(stations)
    assert 0 < report.latency_p50_s <= report.latency_p99_s
    assert 0 < report.queueing_mean_s <= report.queueing_p99_s < report.latency_p99_s
    assert (report.merged_batches, report.fused_batches, report.stacked_batches) == (report.batches, 0, 0)
    assert report.backbone_s > 0
    assert report.hop_s > 0
    assert report.head_s > 0
    assert report.preprocess_s > 0
    assert report.postprocess_s > 0
    slices = [times.slices() for times in timelines]
    spent_s = {name: sum(each[name][1] - each[name][0] for each in slices) for name in slices[0]}
    # batches are computed one at a time, while the head's two threads can overlap
    assert spent_s["preprocess"] + spent_s["backbone"] <= report.backbone_busy_s <= report.time - begin
    head_s, postprocess_s = spent_s["head"], spent_s["postprocess"]
    assert max(head_s, postprocess_s) <= report.head_busy_s <= head_s + postprocess_s + 1e-6


def test_frame_costs_one_decision(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decided when a frame's batch is computed or its slot comes back, and slots are checked once a tick."""
    pipeline = start(batch_size=1)
    decided: list[Choice] = []
    collected: list[float] = []
    choose, collect = ExecutionChooser.choose, ModelInstance.collect

    def note_choice(chooser: ExecutionChooser, *args: Any, **options: Any) -> Choice:
        decided.append(choose(chooser, *args, **options))
        return decided[-1]

    def note_time(instance: ModelInstance, now: float) -> None:
        collected.append(now)
        collect(instance, now)

    monkeypatch.setattr(ExecutionChooser, "choose", note_choice)
    monkeypatch.setattr(ModelInstance, "collect", note_time)
    begin = time.monotonic()
    for value in range(20):
        pipeline.send(value)
        pipeline.settle()
    assert [len(choice.executions) for choice in decided] == [1] * 20
    assert len(collected) <= (time.monotonic() - begin) / TICK_S + 1


def test_handle_reaches_the_heads_queue_by_three_calls(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = start()
    call_chains: list[list[str]] = []
    put_work = WorkerThread.put

    def put(thread: WorkerThread[Any], work: object) -> None:
        names = [found.name for found in traceback.extract_stack()]
        if "hand_over" in names:  # the head's own threads put work as well
            call_chains.append(names)
        put_work(thread, work)

    monkeypatch.setattr(WorkerThread, "put", put)
    settings = StageSettings(batch_size=2, batch_timeout_s=LONG_S)
    stage = BackboneStage(brightness(), settings, LocalTransport(pipeline.head), pytest.fail)
    stage.start()
    for value in (1, 2):
        stage.intake.submit(*frame(value), time.monotonic())
    until(lambda: stage.ledger.counts().published == 2)
    stage.stop(LONG_S)
    stage.close()
    assert [chain[chain.index("hand_over") + 1 :] for chain in call_chains] == [["send", "submit", "put"]]


def test_trace_has_a_row_for_each_stage(tmp_path: Path) -> None:
    trace, head = TraceFile.open(tmp_path / "trace.json"), RecordingHead()
    stage = BackboneStage(BrightModel("one"), StageSettings(), LocalTransport(head), pytest.fail, trace=trace)
    stage.start()
    stage.intake.submit(*frame(9), time.monotonic())
    until(lambda: head.sent)
    ((handle, reader),) = head.sent
    reader.take(handle.lease)
    now = time.monotonic()
    reader.release(handle.lease, Outcome(1, "", now, now, now))
    until(lambda: stage.ledger.counts().published == 1)
    stage.stop(LONG_S)
    stage.close()
    trace.close()
    events = json.loads((tmp_path / "trace.json").read_text())
    rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert rows == {"preprocess", "backbone", "head", "postprocess"}
    (facts,) = {json.dumps(event["args"]) for event in events if event["ph"] == "X"}
    assert json.loads(facts) == {"frames": 1, "split_point": "parts.0", "slot": handle.lease.slot}
