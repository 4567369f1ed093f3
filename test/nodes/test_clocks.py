"""Recordings and clocks: stamps are only passed on, and durations come from a steady clock."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from rclpy.context import Context
from rclpy.qos import QoSProfile
from ros_pipeline import Pipeline
from ros_support import image
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from split_infer_ros.msg import PipelineReport
from split_infer_ros.nodes.intra_process import IntraProcessPublisher

CAMERA = {"width": 64, "height": 48, "rate_hz": 50.0}
SIMULATED = {"use_sim_time": True}
FRAMES = 60


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A bag of old images, whose order is not that of their stamps."""
    pytest.importorskip("rosbags")
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.LATEST)
    kinds: Any = types.types
    path = tmp_path / "recording"
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        name = "sensor_msgs/msg/Image"
        connection = writer.add_connection("/eye/image", name, typestore=types)
        for index in range(FRAMES):
            stamp = kinds["builtin_interfaces/msg/Time"](sec=1000 + index, nanosec=7)
            header = kinds["std_msgs/msg/Header"](stamp=stamp, frame_id="left_eye")
            data = np.full(48 * 64 * 3, index, np.uint8)
            message = kinds[name](header, 48, 64, "rgb8", 0, 64 * 3, data)
            writer.write(connection, 5 * 10**18 + index, types.serialize_cdr(message, name))
    return path


@pytest.mark.parametrize("transport", ["intra_process", "shared_memory"])
def test_recording_keeps_every_frame_and_header(context: Context, recording: Path, transport: str) -> None:
    """The recording is replayed as fast as it can be read, which is faster than the pipeline."""
    chosen = {"transport": transport}
    camera = {"source": f"bag:{recording}", "loop": False, "rate_hz": 0.0, "autostart": False}
    with Pipeline(context, head=chosen, backbone={"drop_policy": "block", **chosen}, camera=camera) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        assert pipeline.client.transition("camera", "configure")
        assert pipeline.client.transition("camera", "activate")
        counts = pipeline.settled(FRAMES)
        assert (counts.received, counts.published, counts.dropped) == (FRAMES, FRAMES, {})
        headers = [found.header for found in detections.wait_for(FRAMES)]
        assert [(h.stamp.sec, h.stamp.nanosec) for h in headers] == [(1000 + index, 7) for index in range(FRAMES)]
        assert {header.frame_id for header in headers} == {"left_eye"}


def test_looped_recording_flows_on(context: Context, recording: Path) -> None:
    camera = {"source": f"bag:{recording}", "loop": True, "rate_hz": 0.0}
    with Pipeline(context, head={}, backbone={"drop_policy": "block"}, camera=camera) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        found = detections.wait_for(2 * FRAMES + 10)
        stamps = [message.header.stamp.sec for message in found]
        back = [later for former, later in itertools.pairwise(stamps) if later < former]
        assert back[:1] == [1000]
        assert pipeline.counts.dropped == {}


def is_sound(report: PipelineReport) -> bool:
    """Returns whether durations are plausible numbers."""
    stages = (report.preprocess_p50_ms, report.backbone_p50_ms, report.head_p50_ms, report.postprocess_p50_ms)
    times = (report.latency_p50_ms, report.hop_p50_ms, *stages)
    return all(math.isfinite(time) and 0 < time < 60_000 for time in times)


def test_simulated_time_may_stand_still_or_jump(context: Context) -> None:
    nodes = {"stats": {}, "head": {}, "backbone": {}, "camera": CAMERA}
    with Pipeline(context, **{name: {**values, **SIMULATED} for name, values in nodes.items()}) as pipeline:
        client = pipeline.client
        detections = client.subscribe(Detection2DArray, "detections")
        reports = client.subscribe(PipelineReport, "report")
        assert detections.wait_for(5)[-1].header.stamp.sec == 0  # no clock yet: time stands at its beginning
        reports.wait_for_one(is_sound, "durations while time stands still")
        clock = client.publisher(Clock, "/clock", QoSProfile(depth=10))
        for second in (1000, 5000, 20):  # forward, faster than real time, and back as a looped recording's does
            clock.publish(Clock(clock=Time(sec=second)))
            detections.wait_for_one(lambda found: found.header.stamp.sec == second, f"frames of second {second}")
            del detections[:], reports[:]
            report = reports.wait_for(2)[1]
            assert is_sound(report)
            assert report.stamp.sec == second
            detections.wait_for(5)
        assert pipeline.counts.balanced
        before = [report.time for report in list(reports)]
        assert before == sorted(before)


def test_system_clock_jump_costs_no_frame(context: Context) -> None:
    with Pipeline(context, head={}, backbone={"drop_policy": "block"}) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        publisher = IntraProcessPublisher(pipeline.client.node, Image, "image", QoSProfile(depth=5))
        stamps = [500, 600, 100, 101, 0]
        for stamp in stamps:
            publisher.publish(image(stamp=stamp))
        assert pipeline.settled(5).published == 5
        assert [found.header.stamp.nanosec for found in detections.wait_for(5)] == stamps
