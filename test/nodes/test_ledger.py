"""The ledger always closes: received = published + dropped by a named reason + in flight."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from rclpy.context import Context
from rclpy.qos import QoSProfile
from ros_pipeline import Pipeline
from ros_support import WAIT_S, Received, image, wait_until
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.nodes.result_publisher import ResultPublisher
from split_infer_ros.nodes.transports.intra_process import IntraProcessReceiver

CAMERA = {"width": 64, "height": 48, "rate_hz": 0.0}


class Gate:
    """Blocks the head until it is opened, and counts the frames that came to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self.arrived = 0
        publish = ResultPublisher.publish

        def pass_on(*arguments: Any) -> None:
            self.arrived += 1
            assert self._open.wait(3 * WAIT_S)
            publish(*arguments)

        monkeypatch.setattr(ResultPublisher, "publish", pass_on)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found = Gate(monkeypatch)
    yield found
    found.open()


def send(pipeline: Pipeline, count: int) -> None:
    """Publishes frames as a camera in this process does, with stamps from 0."""
    publisher = IntraProcessPublisher(pipeline.client.node, Image, "image", QoSProfile(depth=5))
    for number in range(count):
        publisher.publish(image(stamp=number))


def stamps(detections: Received) -> list[int]:
    return [found.header.stamp.nanosec for found in list(detections)]


def test_ledger_closes_while_a_camera_floods_a_slow_head(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = ResultPublisher.publish
    monkeypatch.setattr(ResultPublisher, "publish", lambda *a: (time.sleep(0.05), publish(*a)))
    with Pipeline(context, stats={}, head={}, backbone={"pool_slots": 1}, camera=CAMERA) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        samples = 0
        while len(detections) < 20:
            assert pipeline.counts.balanced
            samples += 1
            time.sleep(1e-3)  # the camera needs the interpreter too
        pipeline.nodes["camera"].trigger_deactivate()
        counts = pipeline.settled(20)
        wait_until(lambda: len(detections) >= counts.published, "all detections")
        assert samples > 100
        assert counts.dropped["overrun"] > 5
        assert set(counts.dropped) == {"overrun"}
        assert len(detections) == counts.published


def test_latest_keeps_the_newest_frame(context: Context, gate: Gate) -> None:
    with Pipeline(context, head={}, backbone={"pool_slots": 2}) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        for number in range(2):  # one with the head, one waiting for it: the slot pool is full
            send(pipeline, 1)
            wait_until(lambda n=number: pipeline.backbone.stage.report(0.0).slots_used > n, "the handle to be out")
        send(pipeline, 30)
        assert pipeline.counts.in_flight == 3
        assert pipeline.counts.dropped == {"overrun": 29}
        gate.open()
        counts = pipeline.settled(32)
        assert (counts.published, counts.dropped) == (3, {"overrun": 29})
        detections.wait_for(3)
        assert stamps(detections) == [0, 0, 29]


def test_block_makes_a_local_camera_wait_and_loses_nothing(context: Context) -> None:
    backbone = {"drop_policy": "block", "batch_size": 4, "pool_slots": 2}
    with Pipeline(context, head={}, backbone=backbone) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        max_in_flight = 0

        def sample() -> None:
            nonlocal max_in_flight
            max_in_flight = max(max_in_flight, pipeline.counts.in_flight)

        sending = threading.Thread(target=send, args=(pipeline, 100))
        sending.start()
        while sending.is_alive():
            sample()
        counts = pipeline.settled(100)
        assert (counts.received, counts.published, counts.dropped) == (100, 100, {})
        detections.wait_for(100)
        assert stamps(detections) == list(range(100))
        assert max_in_flight <= 4 + 2 * 4 + 1  # a batch that waits, the slot pool, and the frame that is being taken


def test_block_loses_nothing_of_a_burst_that_dds_keeps(context: Context) -> None:
    backbone = {"drop_policy": "block", "batch_size": 4, "image_reliability": "reliable", "image_depth": 100}
    with Pipeline(context, head={}, backbone=backbone) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        images = pipeline.client.publisher(Image, "image", QoSProfile(depth=100))
        for number in range(100):
            images.publish(image(stamp=number))
        counts = pipeline.settled(100)
        assert (counts.received, counts.published, counts.dropped) == (100, 100, {})
        detections.wait_for(100)
        assert stamps(detections) == list(range(100))


def test_policy_change_releases_waiting_cameras(context: Context, gate: Gate) -> None:
    with Pipeline(context, head={}, backbone={"drop_policy": "block", "pool_slots": 1}) as pipeline:
        sending = threading.Thread(target=send, args=(pipeline, 20))
        sending.start()
        wait_until(lambda: pipeline.backbone.stage.intake.is_full, "the camera to be held up")
        time.sleep(0.2)
        assert sending.is_alive()
        assert pipeline.client.set("backbone", drop_policy="latest") == [""]
        sending.join(WAIT_S)
        assert not sending.is_alive()
        gate.open()
        counts = pipeline.settled(20)
        assert counts.received == 20
        assert set(counts.dropped) == {"overrun"}


def test_frames_lost_in_dds_drop_as_middleware(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    with Pipeline(context, head={}, backbone={}) as pipeline:
        images = pipeline.client.publisher(Image, "image")
        images.publish(image())
        pipeline.settled(1)
        stage = pipeline.backbone.stage
        submit, busy, done = stage.intake.submit, threading.Event(), threading.Event()
        monkeypatch.setattr(stage.intake, "submit", lambda *a: (busy.set(), done.wait(WAIT_S), submit(*a)))
        images.publish(image())
        assert busy.wait(WAIT_S)  # the thread that reads images works on this one
        for _ in range(25):
            images.publish(image())
        done.set()
        counts = pipeline.settled(27)
        assert counts.received == 27
        assert counts.dropped["middleware"] == 20  # the subscription keeps 5


def test_frames_drop_as_no_head_until_a_head_comes(context: Context) -> None:
    with Pipeline(context, backbone={}) as pipeline:
        send(pipeline, 1)
        assert pipeline.settled(1).dropped == {"no_head": 1}
        pipeline.add("head")
        send(pipeline, 1)
        assert pipeline.settled(2).published == 1
        pipeline.remove("head")
        send(pipeline, 1)
        assert pipeline.settled(3).dropped == {"no_head": 2}


def deaf_head(pipeline: Pipeline) -> IntraProcessReceiver:
    """Returns a head in the backbone's process that ignores the handles that it gets."""
    stage = SimpleNamespace(submit=lambda handle, reader: None, prepare=lambda *what: None)
    return IntraProcessReceiver(pipeline.client.node, pipeline.backbone.model, stage)


def test_slot_of_a_dead_head_is_recovered(context: Context) -> None:
    with Pipeline(context, backbone={"pool_slots": 1}) as pipeline:
        dead = deaf_head(pipeline)
        send(pipeline, 1)
        counts = pipeline.settled(1)
        assert counts.dropped == {"lease_expired": 1}
        dead.stop_receiving()
        pipeline.add("head")
        send(pipeline, 1)
        assert pipeline.settled(2).published == 1


def test_frames_in_flight_at_the_end_drop_as_shutdown(context: Context, gate: Gate) -> None:
    with Pipeline(context, head={}, backbone={"pool_slots": 1}) as pipeline:
        ledger = pipeline.backbone.stage.ledger
        send(pipeline, 1)
        wait_until(lambda: gate.arrived, "the head to be at work")
        send(pipeline, 1)
        pipeline.backbone.trigger_deactivate()  # waits for the head in vain
        counts = ledger.counts()
        assert (counts.received, counts.in_flight, counts.dropped) == (2, 0, {"shutdown": 2})
        gate.open()
        pipeline.backbone.trigger_activate()
        send(pipeline, 1)
        assert pipeline.settled(3).published == 1


def test_restart_frees_slots_of_a_head_that_never_came(context: Context) -> None:
    with Pipeline(context, backbone={"pool_slots": 1}) as pipeline:
        dead = deaf_head(pipeline)
        send(pipeline, 1)
        wait_until(lambda: pipeline.backbone.stage.report(0.0).slots_used, "the handle to be out")
        pipeline.backbone.trigger_deactivate()
        dead.stop_receiving()
        pipeline.backbone.trigger_activate()
        pipeline.add("head")
        for number in range(3):
            send(pipeline, 1)
            assert pipeline.settled(2 + number).published == 1 + number


def test_frames_during_stop_drop_as_inactive(context: Context, gate: Gate) -> None:
    with Pipeline(context, head={}, backbone={}) as pipeline:
        send(pipeline, 1)
        wait_until(lambda: gate.arrived, "the head to be at work")
        stage = pipeline.backbone.stage
        stopping = threading.Thread(target=stage.stop, args=(WAIT_S,))
        stopping.start()
        wait_until(lambda: not stage.is_open, "the stage to stop")
        send(pipeline, 2)
        assert pipeline.counts.dropped == {"inactive": 2}
        gate.open()
        stopping.join(WAIT_S)
        counts = pipeline.counts
        assert (counts.received, counts.published, counts.in_flight) == (3, 1, 0)


def test_failing_head_costs_only_its_frame(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, fail = ResultPublisher.publish, threading.Event()

    def sometimes(*arguments: Any) -> None:
        if fail.is_set():
            raise RuntimeError("no message can be made")
        publish(*arguments)

    monkeypatch.setattr(ResultPublisher, "publish", sometimes)
    with Pipeline(context, head={}, backbone={}) as pipeline:
        fail.set()
        send(pipeline, 1)
        assert pipeline.settled(1).dropped == {"head_error": 1}
        fail.clear()
        send(pipeline, 1)
        assert pipeline.settled(2).published == 1


def test_failing_backbone_costs_only_its_batch(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    with Pipeline(context, head={}, backbone={}) as pipeline:
        normalise = type(pipeline.backbone.model.entry.preprocess).normalise
        monkeypatch.setattr(
            type(pipeline.backbone.model.entry.preprocess), "normalise", lambda *a: (_ for _ in ()).throw(RuntimeError)
        )
        send(pipeline, 1)
        assert pipeline.settled(1).dropped == {"backbone_error": 1}
        monkeypatch.setattr(type(pipeline.backbone.model.entry.preprocess), "normalise", normalise)
        send(pipeline, 1)
        assert pipeline.settled(2).published == 1
