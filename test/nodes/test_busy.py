"""The node ``stats``: the shares of time in which stages are busy, and the energy of an image."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import START_S, Received, image, wait_until
from sensor_msgs.msg import Image

from split_infer_ros.msg import PipelineStats
from split_infer_ros.nodes import stats as stats_node
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.head_partitions import HeadPartitions
from split_infer_ros.server.plan import Plan
from split_infer_ros.telemetry.sensors import Reading, SensorUnit

TRANSPORTS = ("intra_process", "shared_memory", "network")
CAMERA = {"width": 64, "height": 48, "rate_hz": 30.0}
SLOTS = 2
SLOW_S = 0.1
PERIODS = 3


class Bottleneck:
    """Delays a stage in each batch until the other stage is idle, and for a while after that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
        self._pipeline: Pipeline | None = None
        if stage == "backbone":
            kind, name, idle = Plan, "run", self._head_is_idle
        else:
            kind, name, idle = HeadPartitions, "run", self._backbone_is_idle
        method = getattr(kind, name)

        def delay(*arguments: Any, **options: Any) -> Any:
            if self._pipeline is not None:
                wait_until(idle, "the other stage to be idle", START_S)
                time.sleep(SLOW_S)
            return method(*arguments, **options)

        monkeypatch.setattr(kind, name, delay)

    def begin(self, pipeline: Pipeline) -> None:
        """Starts to delay a pipeline that has warmed up."""
        self._pipeline = pipeline

    def end(self) -> None:
        """Stops the delays."""
        self._pipeline = None

    def _head_is_idle(self) -> bool:
        """Returns whether only this batch holds a slot, and a frame waits for the next batch."""
        if self._pipeline is None:
            return True
        leases = self._pipeline.backbone.stage.plan.pool.leases
        return leases.used == 1 and self._pipeline.counts.in_flight > 1

    def _backbone_is_idle(self) -> bool:
        """Returns whether all slots are full, and the next batch waits in the head's queue."""
        return self._pipeline is None or self._pipeline.nodes["head"].stage.num_waiting == SLOTS - 1


def flowing(context: Context, transport: str, **more: dict[str, Any]) -> Pipeline:
    both = {"head": {"transport": transport}, "backbone": {"transport": transport, "pool_slots": SLOTS}}
    return Pipeline(context, stats={"period_s": 0.5}, **both, **more)


def shares(found: Received) -> list[tuple[float, float]]:
    """Returns the busy shares of backbone and head in each period."""
    return [(message.backbone_busy, message.head_busy) for message in list(found) if message.period_s]


def send(pipeline: Pipeline, count: int) -> None:
    """Sends images one by one, each when the last one is done."""
    images, before = pipeline.client.publisher(Image, "image"), pipeline.counts.published
    for number in range(1, count + 1):
        images.publish(image(stamp=number))
        wait_until(lambda n=number: pipeline.counts.published == before + n, "a result")
    pipeline.settled(before + count)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_idle_pipeline_is_not_busy(context: Context, transport: str) -> None:
    with flowing(context, transport) as pipeline:
        found = pipeline.client.subscribe(PipelineStats, "stats")
        found.wait_for_one(
            lambda message: message.period_s > 0, "a period", START_S
        )  # seconds before the first do not count
        send(pipeline, 1)
        found.wait_for_one(lambda message: message.backbone_busy > 0, "a busy backbone", START_S)
        found.wait_for_one(lambda message: message.head_busy > 0, "a busy head", START_S)
        found.wait_for_one(lambda message: message.report.published == 1, "a report of the frame", START_S)
        begin = len(found)
        wait_until(lambda: len(shares(found[begin:])) > PERIODS, "periods without a frame", START_S)
        assert set(shares(found[begin:])[1:]) == {(0.0, 0.0)}
        assert all(math.isnan(message.joules_per_image) for message in found[begin + 1 :])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("slow", ["backbone", "head"])
def test_bottleneck_of_a_full_pipeline_is_busy(
    context: Context, monkeypatch: pytest.MonkeyPatch, transport: str, slow: str
) -> None:
    bottleneck = Bottleneck(monkeypatch, slow)
    with flowing(context, transport, camera=CAMERA) as pipeline:
        bottleneck.begin(pipeline)
        found = pipeline.client.subscribe(PipelineStats, "stats")
        found.wait_for_one(lambda message: message.report.published > 1, "a second frame", START_S)
        begin = len(found)
        wait_until(lambda: len(shares(found[begin:])) > PERIODS, "periods with frames", START_S)
        bottleneck.end()
    found_shares = shares(found[begin:])[1:]
    assert all(0 <= share <= 1 for pair in found_shares for share in pair)
    backbone, head = (sum(column) / len(found_shares) for column in zip(*found_shares, strict=True))
    busy, other = (backbone, head) if slow == "backbone" else (head, backbone)
    assert busy > 0.75, found_shares
    assert other < busy, found_shares


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_busy_seconds_equal_the_stages_time(context: Context, monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    """Batches go one after the other, so that their seconds add up."""
    frames, head_times = 10, []
    plan_run, partitions = Plan.run, HeadPartitions.run
    monkeypatch.setattr(Plan, "run", lambda *a, **k: (time.sleep(SLOW_S / 2), plan_run(*a, **k))[1])
    monkeypatch.setattr(HeadPartitions, "run", lambda *a: (time.sleep(SLOW_S), partitions(*a))[1])

    def record_time(method: Callable[..., None], sign: int) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if sign < 0:
                head_times.append(-time.monotonic())
            method(*arguments)
            if sign > 0:
                head_times.append(time.monotonic())

        return call

    def make_thread(name: str, process: Callable[..., None], set_up: Callable[[], None]) -> WorkerThread[Any]:
        return WorkerThread(name, record_time(process, {"head": -1, "postprocess": +1}[name]), set_up)

    monkeypatch.setattr("split_infer_ros.server.head_stage.WorkerThread", make_thread)
    with flowing(context, transport) as pipeline:
        before = pipeline.backbone.stage.report(time.monotonic())
        send(pipeline, frames)
        after = pipeline.backbone.stage.report(time.monotonic())
    passed = after.time - before.time
    backbone_s, head_s = after.backbone_busy_s - before.backbone_busy_s, after.head_busy_s - before.head_busy_s
    assert frames * SLOW_S / 2 <= backbone_s <= passed - frames * SLOW_S
    assert frames * SLOW_S <= head_s <= sum(head_times) + SLOW_S  # a look may find a batch on its way to the head


class SimulatedSensors:
    """The sensors of a board that takes 10 W."""

    def read(self) -> list[Reading]:
        return [Reading("VDD_IN", 10.0, SensorUnit.WATT)]


class SimulatedCounter:
    """The energy counter of a package that takes 10 W."""

    def read(self) -> list[Reading]:
        return [Reading("package-0", 10.0 * time.monotonic(), SensorUnit.JOULE)]


@pytest.mark.parametrize("sensors", [SimulatedSensors, SimulatedCounter])
def test_energy_is_divided_among_images(
    context: Context, monkeypatch: pytest.MonkeyPatch, sensors: type[SimulatedSensors | SimulatedCounter]
) -> None:
    monkeypatch.setattr(stats_node.Sensors, "find", sensors)
    with flowing(context, "intra_process", camera=CAMERA) as pipeline:
        found = pipeline.client.subscribe(PipelineStats, "stats")
        stats = found.wait_for_one(
            lambda message: message.published_hz > 0 and message.joules_per_image > 0, "energy", START_S
        )
        # the time of a counter's reading is a little later than the counter's own
        assert stats.joules_per_image * stats.published_hz == pytest.approx(10.0, rel=0.02)
        assert [(sensor.unit, sensor.value) for sensor in stats.sensors] == [("W", pytest.approx(10.0, rel=0.02))]
        pipeline.nodes["camera"].trigger_deactivate()
        found.wait_for_one(
            lambda message: message.report.received and not message.published_hz, "a period without images", START_S
        )
        assert all(math.isnan(message.joules_per_image) for message in found if not message.published_hz)
