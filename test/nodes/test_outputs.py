"""What the nodes publish besides detections: labels, pictures, stats, diagnostics and the camera's images."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.context import Context
from rclpy.qos import DurabilityPolicy, QoSProfile
from ros_pipeline import Pipeline, wait_for_match
from ros_support import image, wait_until
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray, VisionInfo

from split_infer_ros.images.encodings import read_message
from split_infer_ros.models.shapes_file import LABELS
from split_infer_ros.msg import PipelineStats
from split_infer_ros.nodes import overlay
from split_infer_ros.nodes.conversions import counts_of
from split_infer_ros.sources import draw_scene

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


@pytest.fixture
def pipeline(context: Context) -> Iterator[Pipeline]:
    with Pipeline(context, stats={"period_s": 0.2}, head={}, backbone={}) as found:
        yield found


def test_late_subscriber_receives_the_labels(pipeline: Pipeline) -> None:
    (info,) = pipeline.client.subscribe(VisionInfo, "vision_info", LATCHED).wait_for(1)
    assert info.method == "shapes"
    node, name = info.database_location.rsplit("/", 1)
    assert node == f"{pipeline.namespace}/head"
    assert tuple(pipeline.client.get(node, name)) == LABELS
    assert name in pipeline.client.set("head", **{name: ["other"]})[0]  # read-only


def test_pictures_are_drawn_only_for_subscribers(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, draw = [], overlay.draw_detections
    monkeypatch.setattr(overlay, "draw_detections", lambda *a: (drawn.append(a), draw(*a))[1])
    detections = pipeline.client.subscribe(Detection2DArray, "detections")
    images = pipeline.client.publisher(Image, "image")
    images.publish(image())
    detections.wait_for(1)
    assert drawn == []

    assert pipeline.client.set("head", score_threshold=0.0, max_detections=5) == ["", ""]
    pictures = pipeline.client.subscribe(Image, "detections/image")
    wait_for_match(pipeline.nodes["head"], "detections/image")
    message = image(50, 70, "mono8", stamp=9, frame_id="seen", padding=3)
    images.publish(message)
    (picture,) = pictures.wait_for(1)
    assert picture.header == message.header
    assert (picture.height, picture.width, picture.encoding) == (50, 70, "rgb8")
    grey = read_message(message).data
    changed = (read_message(picture).data != np.repeat(grey, 3, axis=2)).any(axis=2)
    assert 0 < changed.sum() < 50 * 70  # boxes on the source image

    for subscription in list(pipeline.client.node.subscriptions):
        if subscription.topic_name.endswith("detections/image"):
            pipeline.client.node.destroy_subscription(subscription)
    wait_for_match(pipeline.nodes["head"], "detections/image", 0)
    before = len(drawn)
    images.publish(image())
    detections.wait_for(3)
    assert len(drawn) == before


def test_stats_contain_counts_and_rates(context: Context) -> None:
    camera = {"width": 64, "height": 48, "rate_hz": 10.0}
    with Pipeline(context, stats={"period_s": 0.5}, head={}, backbone={}, camera=camera) as pipeline:
        stats = pipeline.client.subscribe(PipelineStats, "stats")
        found = stats.wait_for_one(lambda message: message.report.published > 10, "ten frames published")
        report = found.report
        assert counts_of(report).balanced
        assert (report.model, report.device, report.split_point) == ("shapes", "cpu", "neck")
        assert (report.batch_size, report.drop_policy, report.pool_slots, report.memory) == (1, "latest", 4, "host")
        assert report.pool_bytes == 4 * 192_000
        assert 0 <= report.slots_used <= 4
        assert 0 < report.latency_p50_ms <= report.latency_p99_ms < 60_000
        assert 0 < report.hop_p50_ms < report.latency_p50_ms
        assert report.backbone_p50_ms + report.head_p50_ms < 2 * report.latency_p99_ms
        assert report.batch_fill == 1.0
        assert (report.merged_batches, report.fused_batches, report.stacked_batches) == (0, 0, 0)
        assert 0 <= report.queueing_mean_ms <= report.queueing_p99_ms < report.latency_p99_ms
        last = stats.wait_for_one(lambda message: message.report.published > 30, "thirty frames published")
        rates = [message for message in stats[: stats.index(last) + 1] if message.period_s > 0]
        received = sum(message.received_hz * message.period_s for message in rates)
        published = sum(message.published_hz * message.period_s for message in rates)
        dropped = sum(message.dropped_hz * message.period_s for message in rates)
        first = stats[0].report
        assert received == pytest.approx(last.report.received - first.received, abs=0.1)
        assert published == pytest.approx(last.report.published - first.published, abs=0.1)
        assert dropped == pytest.approx(
            sum(counts_of(last.report).dropped.values()) - sum(counts_of(first).dropped.values()), abs=0.1
        )


def test_diagnostics_show_the_pipelines_state(pipeline: Pipeline) -> None:
    diagnostics = pipeline.client.subscribe(DiagnosticArray, "/diagnostics")

    def status(level: bytes, words: str, **facts: str) -> DiagnosticStatus:
        def fits(message: DiagnosticArray) -> bool:
            found = message.status[0]
            values = {entry.key: entry.value for entry in found.values}
            return found.level == level and words in found.message and facts.items() <= values.items()

        found = diagnostics.wait_for_one(fits, f"'{words}'").status[0]
        diagnostics.clear()
        return found

    calm = status(DiagnosticStatus.OK, "No frame has come in yet")
    assert calm.name == f"{pipeline.namespace[1:]}/pipeline"
    images = pipeline.client.publisher(Image, "image")
    spoilt = image(encoding="bayer")
    images.publish(spoilt)
    status(DiagnosticStatus.WARN, "none goes out")
    images.publish(image())
    values = {entry.key: entry.value for entry in status(DiagnosticStatus.OK, "Frames flow", published="1").values}
    assert values["received"] == "2"
    assert values["in flight"] == "0"
    assert values["dropped: unknown_encoding"] == "1"
    assert values["model"] == "shapes"
    pipeline.remove("backbone")
    status(DiagnosticStatus.STALE, "No backbone reports")


def test_camera_publishes_scenes_with_truth(context: Context) -> None:
    camera = {"width": 320, "height": 240, "rate_hz": 0.0, "seed": 7, "frame_id": "eye", "autostart": False}
    with Pipeline(context, camera=camera) as pipeline:
        assert pipeline.client.transition("camera", "configure")
        images = pipeline.client.subscribe(Image, "image")
        truth = pipeline.client.subscribe(Detection2DArray, "truth")
        wait_for_match(pipeline.nodes["camera"], "truth")
        wait_for_match(pipeline.nodes["camera"], "image")
        assert pipeline.client.transition("camera", "activate")
        for index, (shown, known) in enumerate(zip(images.wait_for(3), truth.wait_for(3), strict=True)):
            scene = draw_scene(7, index, 320, 240)
            assert shown.header == known.header
            assert shown.header.frame_id == "eye"
            assert bytes(shown.data) == scene.image.tobytes()
            assert [found.results[0].hypothesis.class_id for found in known.detections] == [
                LABELS[label] for label in scene.labels
            ]


def test_camera_publishes_a_folder_to_its_end(context: Context, tmp_path: Path) -> None:
    for number, shade in enumerate((10, 20, 30)):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.full((20 + number, 30, 3), shade, np.uint8))
    camera = {"source": f"folder:{tmp_path}", "loop": False, "rate_hz": 0.0, "autostart": False}
    with Pipeline(context, camera=camera) as pipeline:
        assert pipeline.client.transition("camera", "configure")
        images = pipeline.client.subscribe(Image, "image")
        wait_for_match(pipeline.nodes["camera"], "image")
        assert pipeline.client.transition("camera", "activate")
        found = [(message.height, message.width, message.data[0]) for message in images.wait_for(3)]
        assert found == [(20, 30, 10), (21, 30, 20), (22, 30, 30)]
        wait_until(lambda: "camera" not in [each.name for each in threading.enumerate()], "the end")
        assert len(images) == 3
        assert pipeline.client.state("camera") == "active"


def test_camera_without_source_publishes_nothing(context: Context) -> None:
    with Pipeline(context, camera={"source": "none"}) as pipeline:
        assert pipeline.client.state("camera") == "active"
        wait_until(lambda: "camera" not in [each.name for each in threading.enumerate()], "the end")
