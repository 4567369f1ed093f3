"""Detections serialised by the package are rclpy's own bytes: the same numbers are written, so equality is due.

Padding is not compared, because Fast DDS leaves there what was in memory.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from hypothesis import given, settings
from hypothesis import strategies as st
from rclpy.context import Context
from rclpy.serialization import serialize_message
from ros_pipeline import Pipeline
from ros_support import Client, image, wait_until
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from split_infer_ros.models.detections import Detections
from split_infer_ros.nodes import result_publisher, serialised_detections
from split_infer_ros.nodes.conversions import detections_message
from split_infer_ros.nodes.serialised_detections import agrees_with_rclpy, serialise_detections

NAMES = [text[:length] for text in ("abcdefghi", "über猫🐈žž") for length in range(10)]
ODD_SCORES = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45]


def drawn(count: int, labels: int, seed: int) -> Detections:
    """Returns detections with boxes and scores that need all bits of a float32, and some odd scores."""
    rng = np.random.default_rng(seed)
    scores = rng.random(count, np.float32)
    scores[: len(ODD_SCORES)] = ODD_SCORES[:count]
    boxes = rng.standard_normal((count, 4), np.float32) * 500
    return Detections(boxes, scores, rng.integers(0, labels, count))


def fields(message: bytes) -> list[bytes]:
    """Returns the bytes of each field of a serialised Detection2DArray, without padding."""
    found, at = [message[:4]], 4

    def take(count: int, alignment: int) -> bytes:
        nonlocal at
        at += -(at - 4) % alignment
        found.append(message[at : at + count])
        assert len(found[-1]) == count
        at += count
        return found[-1]

    def take_length() -> int:
        return int.from_bytes(take(4, 4), "little")

    def take_header() -> None:
        take(4, 4)
        take(4, 4)
        take(take_length(), 1)

    take_header()
    for _ in range(take_length()):
        take_header()
        for _ in range(take_length()):
            take(take_length(), 1)
            for _ in range(1 + 7 + 36):  # score, pose, covariance
                take(8, 8)
        for _ in range(5):
            take(8, 8)
        take(take_length(), 1)
    assert at == len(message)
    return found


def assert_same_bytes(detections: Detections, labels: list[str], header: Header) -> None:
    expected = serialize_message(detections_message(detections, labels, header))
    assert fields(serialise_detections(detections, labels, header)) == fields(expected)


@pytest.mark.parametrize("count", [0, 1, 2, 100])
@pytest.mark.parametrize("frame_id", NAMES)
def test_bytes_are_rclpy_s_for_names_of_all_lengths(frame_id: str, count: int) -> None:
    header = Header(stamp=Time(sec=random.Random(count).randrange(2**31), nanosec=999_999_999), frame_id=frame_id)
    assert_same_bytes(drawn(count, len(NAMES), count), NAMES, header)
    for name in NAMES[:10]:  # the first box's label decides where all others begin
        assert_same_bytes(drawn(count, 1, count), [name], header)


@settings(max_examples=200, database=None)
@given(
    names=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=5),
    frame_id=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    sec=st.integers(-(2**31), 2**31 - 1),
    nanosec=st.integers(0, 2**32 - 1),
    count=st.integers(0, 9),
)
def test_bytes_are_rclpy_s_for_drawn_names(names: list[str], frame_id: str, sec: int, nanosec: int, count: int) -> None:
    header = Header(stamp=Time(sec=sec, nanosec=nanosec), frame_id=frame_id)
    assert_same_bytes(drawn(count, len(names), count), names, header)


def test_rclpy_is_asked_where_bytes_differ(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert agrees_with_rclpy()  # with the middleware of these tests
    monkeypatch.setattr(serialised_detections, "serialize_message", lambda message: b"another format")
    agrees_with_rclpy.cache_clear()
    monkeypatch.setattr(result_publisher, "serialise_detections", lambda *a: pytest.fail("its bytes would be wrong"))
    try:
        with Pipeline(context, head={"score_threshold": 0.0}, backbone={}) as pipeline:
            found = pipeline.client.subscribe(Detection2DArray, "detections")
            pipeline.client.publisher(Image, "image").publish(image(stamp=7))
            assert found.wait_for(1)[0].header.stamp.nanosec == 7
            assert pipeline.settled(1).published == 1
    finally:
        agrees_with_rclpy.cache_clear()


def test_subscribers_receive_what_was_detected(context: Context) -> None:
    client, header = Client(context, "/serialised"), image(stamp=5).header
    found = drawn(48, len(NAMES), 1)
    publisher = client.node.create_publisher(Detection2DArray, "detections", 5)
    try:
        received = client.subscribe(Detection2DArray, "detections")
        wait_until(publisher.get_subscription_count, "the subscriber")
        publisher.publish(serialise_detections(found, NAMES, header))
        expected = detections_message(found, NAMES, header)
        (message,) = received.wait_for(1)
        assert fields(serialize_message(message)) == fields(serialize_message(expected))
        assert [box.results[0].hypothesis.class_id for box in message.detections] == [
            NAMES[label] for label in found.labels.tolist()
        ]
    finally:
        client.close()
