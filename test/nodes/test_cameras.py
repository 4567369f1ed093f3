"""Several cameras share batches, and no camera delays the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from rclpy.context import Context
from ros_pipeline import Pipeline, wait_for_match
from ros_support import Received, image, wait_until
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from split_infer_ros.msg import FeatureHandle

TOPICS = ["left/image", "right/image", "silent/image"]
TIMEOUT_MS = 1000.0
LONG_TIMEOUT_MS = 30_000.0  # far longer than the machine may stall


@pytest.fixture(scope="module")
def pipeline(context: Context) -> Iterator[Pipeline]:
    backbone = {"image_topics": TOPICS, "batch_size": 2, "batch_timeout_ms": LONG_TIMEOUT_MS}
    with Pipeline(context, backbone=backbone, head={}) as found:
        yield found


@pytest.fixture(scope="module")
def handles(pipeline: Pipeline) -> Received:
    found = pipeline.client.subscribe(FeatureHandle, "features")
    wait_for_match(pipeline.backbone, "features")
    return found


@pytest.fixture(scope="module")
def detections(pipeline: Pipeline) -> Received:
    return pipeline.client.subscribe(Detection2DArray, "detections")


def test_two_cameras_share_a_batch_sent_when_full(pipeline: Pipeline, handles: Received, detections: Received) -> None:
    left, right = (pipeline.client.publisher(Image, topic) for topic in TOPICS[:2])
    started = time.monotonic()
    left.publish(image(stamp=1, frame_id="left"))
    wait_until(lambda: pipeline.counts.received == 1, "the first image")  # each camera is read by a thread of its own
    right.publish(image(30, 40, stamp=2, frame_id="right"))
    assert [found.header.frame_id for found in detections.wait_for(2)] == ["left", "right"]
    assert time.monotonic() - started < LONG_TIMEOUT_MS / 1e3  # nobody waited for the third camera
    handle = handles.wait_for(1)[0]
    assert handle.sources == TOPICS[:2]
    assert list(handle.heights) == [48, 30]
    assert list(handle.widths) == [64, 40]
    assert [header.frame_id for header in handle.headers] == ["left", "right"]


def test_single_camera_waits_for_the_timeout(pipeline: Pipeline, handles: Received, detections: Received) -> None:
    right = pipeline.client.publisher(Image, TOPICS[1])
    assert pipeline.client.set("backbone", batch_timeout_ms=TIMEOUT_MS) == [""]
    handles.clear()
    detections.clear()
    started = time.monotonic()
    right.publish(image(stamp=3))
    detections.wait_for(1)
    waited = time.monotonic() - started
    assert 0.9 * TIMEOUT_MS / 1e3 < waited < 10 * TIMEOUT_MS / 1e3
    assert handles.wait_for(1)[0].sources == TOPICS[1:2]


def test_flooding_camera_costs_others_no_frame(pipeline: Pipeline, detections: Received) -> None:
    left, right = (pipeline.client.publisher(Image, topic) for topic in TOPICS[:2])
    pipeline.client.set("backbone", batch_timeout_ms=20.0)
    before = pipeline.settled(0)
    detections.clear()
    for number in range(10):
        for topic in (left, left, right, left, left):
            topic.publish(image(stamp=number, frame_id="right" if topic is right else "left"))
        wait_until(lambda n=number: _served(detections)["right"] > n, f"frame {number} of the right camera")
    after = pipeline.settled(before.received + 50)
    assert after.received == before.received + 50
    wait_until(lambda: _served(detections)["left"] >= 10, "ten frames of the left camera")


def _served(detections: Received) -> Counter[str]:
    return Counter(found.header.frame_id for found in list(detections))
