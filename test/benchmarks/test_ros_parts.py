"""What the benchmarks of ROS nodes measure with, and what they conclude."""

from __future__ import annotations

import math
import os
import struct
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy")

import overload
import pipeline
import rclpy
import transports
from _claim import Verdict
from _dds_hop import DdsHop
from _feed import to_message
from _process_usage import ProcessUsage
from _ros import Arrivals, stamp_ns
from _rows import measured
from _trace import Batch, Trace, busy
from _turns import Contest
from builtin_interfaces.msg import Time
from rclpy.serialization import serialize_message
from std_msgs.msg import Header
from vision_msgs.msg import Detection2D, Detection2DArray

from split_infer_ros.server.timeline import Timeline
from split_infer_ros.telemetry.trace import TraceFile


def contest(**figures: list[float]) -> Contest:
    found = Contest("", lambda turn: {})
    found.figures, found.turns, found.spent_s = figures, len(next(iter(figures.values()))), 10.0
    return found


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
    monkeypatch.setattr("_ros.time", clock)
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


def test_dds_carries_messages_of_all_sizes():
    rclpy.init()
    try:
        with DdsHop([1000, 200_000]) as dds:
            assert all(0 < dds.median(size, 3, 0.0) < 5 for size in (1000, 200_000))
    finally:
        rclpy.try_shutdown()


def test_row_has_the_median_and_its_interval():
    row = measured(hop_ms=[float(value) for value in range(1, 22)])
    assert (row["turns"], row["hop_ms"]) == (21, 11.0)
    assert row["hop_ms_low"] < 11.0 < row["hop_ms_high"]


def test_frames_of_the_same_turn_are_compared():
    naive = [20.0, 40.0] * 10
    claim = pipeline.throughput_claims(contest(pipeline=[3.5 * rate for rate in naive], naive=naive))[0]
    assert (claim.found.value, claim.verdict, claim.turn_s) == (3.5, Verdict.HOLDS, 0.5)


def test_hop_and_latency_are_compared_with_dds_and_naive():
    small, large = (f"{pipeline.DDS} {size}" for size in (pipeline.SMALL, pipeline.LARGE))
    seconds = {"pipeline": 0.03, "naive": 0.05, "hop": 1e-4, small: 8e-4, large: 2e-3}
    claims = pipeline.latency_claims(contest(**{name: [value] * 20 for name, value in seconds.items()}))
    assert [round(claim.found.value, 6) for claim in claims] == [0.6, 8.0, 20.0]
    assert [claim.verdict for claim in claims] == [Verdict.HOLDS, Verdict.HOLDS, Verdict.FAILS]


def test_lost_images_make_the_claim_fail():
    figures = {"shipped": [1.0] * 20, "default": [5.0] * 20, "shipped arrived": [1.0, 2 / 3] * 10}
    sooner, arrived = transports.image_claims(contest(**figures))
    assert (sooner.found.value, sooner.verdict) == (0.2, Verdict.HOLDS)
    assert (round(arrived.found.value, 3), arrived.verdict) == (0.833, Verdict.FAILS)


def test_percentile_over_turns_is_that_of_all_their_frames():
    rng = np.random.default_rng(0)
    turns = [list(rng.exponential(1.0, 50)) for _ in range(20)]
    found = overload.over_turns(lambda chosen: overload.p99(overload.together(turns, chosen)), len(turns))
    assert found.value == pytest.approx(np.percentile(np.concatenate(turns), 99))
    assert found.low < found.value < found.high
    assert found.turns == 20


def overloaded(growth: float, lost: int, seconds: list | None = None) -> list:
    during, after = SimpleNamespace(in_flight=5), SimpleNamespace(in_flight=lost)
    bench = SimpleNamespace(
        ages={"moderate": [[0.02] * 30] * 20, "flooded": [[0.03] * 30] * 20},
        seconds=seconds or [(float(second), 900.0 + growth * second / 20, 3.0) for second in range(20)],
        reports=[during, during, after],
    )
    return overload.claims(contest(moderate=[90.0] * 20, flooded=[100.0] * 20), bench)


def test_overload_claims_are_what_was_seen():
    claims = overloaded(growth=0.5, lost=0)
    assert [round(claim.found.value, 6) for claim in claims] == [3.0, 0.5, 0, 3.0, 1.5]
    assert {claim.verdict for claim in claims} == {Verdict.HOLDS}


def test_growing_memory_and_lost_frames_fail():
    claims = overloaded(growth=5.0, lost=2)
    assert [claim.verdict for claim in claims] == [
        Verdict.HOLDS,
        Verdict.FAILS,
        Verdict.FAILS,
        Verdict.HOLDS,
        Verdict.HOLDS,
    ]


def test_memory_that_was_given_back_is_no_error():
    assert overloaded(growth=-5.0, lost=0)[1].verdict == Verdict.HOLDS


def test_memory_that_wanders_decides_nothing():
    wandering = [(float(second), 900.0 + 3.0 * (second % 7), 3.0) for second in range(20)]
    assert overloaded(growth=0.0, lost=0, seconds=wandering)[1].verdict == Verdict.UNCLEAR


def test_few_turns_decide_nothing():
    claim = pipeline.throughput_claims(contest(pipeline=[50.0] * 9, naive=[20.0] * 9))[0]
    assert claim.verdict == Verdict.UNCLEAR
    assert math.isfinite(claim.settles_s)


def test_transports_are_compared_at_the_large_size():
    seconds = {"intra_process": 1e-4, "shared_memory": 2e-3, "network": 0.15, "plain DDS": 5e-2}
    figures = {f"{name} {transports.LARGE}": [value] * 20 for name, value in seconds.items()}
    figures[f"shared_memory {transports.SMALL}"] = [1.5e-3] * 20
    claims = transports.hop_claims(contest(**figures))
    assert [round(claim.found.value, 3) for claim in claims] == [500, 25, 1.333, 3]
    assert [claim.verdict for claim in claims] == [Verdict.HOLDS, Verdict.HOLDS, Verdict.HOLDS, Verdict.FAILS]
