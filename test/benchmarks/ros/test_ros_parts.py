"""What the benchmarks of ROS nodes measure with."""

from __future__ import annotations

import os
import struct
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy")

import rclpy
from builtin_interfaces.msg import Time
from rclpy.serialization import serialize_message
from std_msgs.msg import Header
from vision_msgs.msg import Detection2D, Detection2DArray

from benchmarks.ros.dds_hop import DdsHop
from benchmarks.ros.feed import Camera, to_message
from benchmarks.ros.observer import Arrivals, stamp_ns
from benchmarks.ros.process_usage import ProcessUsage
from benchmarks.ros.rival_turns import CALM_ROUNDS, MAX_ROUNDS, steady
from benchmarks.ros.trace import Batch, Trace, busy
from split_infer_ros.server.timeline import Timeline
from split_infer_ros.telemetry.trace import TraceFile


def test_trace_is_read_while_it_is_written(tmp_path):
    path = tmp_path / "trace.json"
    file, trace = TraceFile.open(path), Trace(path)
    for index in range(3):
        at = 10.0 * index
        times = Timeline(at, at + 1, at + 1, at + 3, at + 3, at + 3.5, at + 5.5, at + 6)
        file.slices(times.slices(), f"batch {index}", frames=4, split_point="s", slot=0)
        assert trace.read() == index + 1
        assert trace.batches[-1] == Batch(4, (at + 1, at + 3), (at + 3.5, at + 5.5), at + 6)
        assert trace.batches[-1].hop_s == 0.5
    assert trace.between(7.0, 12.0) == [trace.batches[1]]
    with pytest.raises(RuntimeError, match="3 batches, not 4"):
        trace.wait_for(4, 0.01)


def test_half_a_line_of_a_trace_is_left_for_later(tmp_path):
    whole, path = tmp_path / "whole.json", tmp_path / "half.json"
    TraceFile.open(whole).slices(Timeline().slices(), "batch 1", frames=1)
    text = whole.read_text()
    path.write_text(text[:-10])
    trace = Trace(path)
    assert trace.read() == 0
    path.write_text(text)
    assert trace.read() == 1


def test_busy_counts_what_lies_in_the_time_asked_for():
    batches = [Batch(1, (0.0, 2.0), (2.0, 3.0), 3.0), Batch(1, (3.0, 7.0), (7.0, 7.5), 8.0)]
    assert busy(batches, 1.0, 5.0) == {"backbone_busy": 0.75, "head_busy": 0.25}


def test_usage_of_processes_counts_their_time_and_memory():
    usage = ProcessUsage({"here": [os.getpid()]})
    with usage.of("here"):
        begin = os.times().user
        while os.times().user < begin + 0.2:
            sum(range(10_000))
    row = usage.row("here")
    assert row["peak_mb"] > 10
    assert 0 < row["cpu_busy"] <= 1.1


def test_rate_is_what_arrived_in_the_time(monkeypatch):
    clock, callbacks = SimulatedArrivals(), []
    monkeypatch.setattr("benchmarks.ros.observer.time", clock)
    observer = SimpleNamespace(subscribe=lambda kind, topic, receive, **_: callbacks.append(receive))
    arrivals = Arrivals(observer, "/detections")
    (clock.receive,) = callbacks
    clock.arrive(9.9, 0.0)
    clock.now = 10.0
    assert arrivals.during(2.0) == (1.5, [0.1, 0.2, 0.3])


class SimulatedArrivals:
    """A clock. While somebody sleeps, three detections arrive in time, and one that came too late."""

    def monotonic(self):
        return self.now

    def time_ns(self):
        return self.age_ns

    def sleep(self, seconds):
        end = self.now + seconds
        for at, age in ((10.5, 0.1), (11.0, 0.2), (11.5, 0.3), (12.5, 0.4)):
            self.arrive(at, age)
        self.now = end

    def arrive(self, at, age):
        self.now, self.age_ns = at, round(1e9 * age)
        self.receive(b"\0\0\0\0" + struct.pack(">iI", 0, 0))  # stamped with 0


@pytest.mark.parametrize("frame_id", ["", "camera"])
def test_stamp_is_read_from_serialised_detections(frame_id):
    stamp = Time(sec=1_800_000_000, nanosec=123_456_789)
    message = Detection2DArray(header=Header(stamp=stamp, frame_id=frame_id), detections=[Detection2D()])
    assert stamp_ns(serialize_message(message)) == 1_800_000_000_123_456_789


def test_stamp_of_a_big_endian_machine_is_read():
    assert stamp_ns(b"\0\0\0\0" + struct.pack(">iI", -1, 5)) == -(10**9) + 5


def test_images_are_sent_as_they_are():
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    message = to_message(picture)
    assert (message.height, message.width, message.step, message.encoding) == (2, 3, 9, "bgr8")
    assert bytes(message.data) == picture.tobytes()


def test_a_camera_begins_after_its_delay_and_goes_on_at_its_rate():
    sent, all_sent = [], threading.Event()

    def publish(message):
        sent.append(time.monotonic())
        if len(sent) == 3:
            all_sent.set()

    publisher = SimpleNamespace(publish=publish, get_subscription_count=lambda: 1)
    clock = SimpleNamespace(now=lambda: SimpleNamespace(to_msg=Time))
    node = SimpleNamespace(create_publisher=lambda *_: publisher, get_clock=lambda: clock)
    camera = Camera(node, "/image", [np.zeros((2, 2, 3), np.uint8)])
    begin = time.monotonic()
    camera.rate(50.0, 0.1)
    assert all_sent.wait(30.0)
    camera.rate(0.0)
    assert sent[0] - begin >= 0.1
    assert sent[2] - begin >= 0.1 + 2 / 50


def test_dds_carries_messages_of_all_sizes():
    rclpy.init()
    try:
        with DdsHop([1000, 200_000]) as dds:
            assert all(0 < dds.median(size, 3, 0.0) < 5 for size in (1000, 200_000))
    finally:
        rclpy.try_shutdown()


@pytest.mark.parametrize(
    ("found", "expected", "rounds"),
    [
        ([20.0, 21.0, 19.0, 20.0, 20.0, 99.0], 21.0, 1 + CALM_ROUNDS),
        ([5.0, 5.0, 20.0, 40.0, *[41.0] * 9], 41.0, 4 + CALM_ROUNDS),  # what it did at first is forgotten
        ([2.0**number for number in range(99)], 2.0 ** (MAX_ROUNDS - 1), MAX_ROUNDS),
    ],
)
def test_a_node_is_measured_until_it_is_no_longer_faster(found, expected, rounds):
    asked = iter(found)
    assert steady(lambda: next(asked)) == expected
    assert found[rounds:] == list(asked)
