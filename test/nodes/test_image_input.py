"""Image input: compressed, raw, too large, too fast, paused, in other encodings, with NaN pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import cv2
import numpy as np
import pytest
import rclpy
from builtin_interfaces.msg import Time
from rcl_interfaces.msg import Log
from rclpy.context import Context
from rclpy.qos import DurabilityPolicy, QoSProfile
from ros_pipeline import Pipeline
from ros_support import Client, image, wait_until
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header, String
from std_srvs.srv import SetBool
from vision_msgs.msg import Detection2DArray

from split_infer_ros.msg import PipelineReport
from split_infer_ros.nodes.intra_process import IntraProcessPublisher

COMPRESSED = {"image_transport": "compressed"}


def compressed(kind: str = "jpeg", stamp: int = 1, height: int = 48, width: int = 64) -> CompressedImage:
    _, data = cv2.imencode(f".{kind}", np.zeros((height, width, 3), np.uint8))
    header = Header(stamp=Time(sec=stamp), frame_id="left_eye")
    return CompressedImage(header=header, format=f"bgr8; {kind} compressed bgr8", data=data.tobytes())


def send(pipeline: Pipeline, count: int) -> None:
    """Publishes frames within this process, where the middleware cannot lose them."""
    publisher = IntraProcessPublisher(pipeline.client.node, Image, "image", QoSProfile(depth=5))
    for number in range(count):
        publisher.publish(image(stamp=number))
    publisher.destroy()


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_compressed_images_are_served(context: Context, kind: str) -> None:
    with Pipeline(context, head={"score_threshold": 0.0}, backbone=COMPRESSED) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        pipeline.client.publisher(CompressedImage, "image/compressed").publish(compressed(kind))
        (found,) = detections.wait_for(1)
        assert (found.header.stamp.sec, found.header.frame_id) == (1, "left_eye")
        assert pipeline.settled(1).published == 1


def test_corrupt_compressed_image_costs_only_itself(context: Context) -> None:
    with Pipeline(context, head={}, backbone=COMPRESSED) as pipeline:
        images = pipeline.client.publisher(CompressedImage, "image/compressed")
        message = compressed()
        message.data = message.data[: len(message.data) // 2]
        images.publish(message)
        images.publish(compressed())
        counts = pipeline.settled(2)
        assert (counts.published, counts.dropped) == (1, {"corrupt_image": 1})


class Elsewhere:
    """Makes clients with a context each, as other processes have. In one context, a topic has one type.

    Args:
        domain: the ROS domain.
    """

    def __init__(self, domain: int) -> None:
        self._domain = domain
        self._cleanup = ExitStack()

    def client(self, namespace: str) -> Client:
        """Makes a client. ``close`` closes it."""
        context = Context()
        rclpy.init(context=context, domain_id=self._domain)
        self._cleanup.callback(rclpy.try_shutdown, context=context)
        client = Client(context, namespace)
        self._cleanup.callback(client.close)
        return client

    def publisher(self, namespace: str, message: type, topic: str) -> Any:
        """Makes a publisher, and returns it once a subscription has matched it.

        Rarely, Fast DDS 3.2 never matches the endpoints of two contexts of one process. Another
        client then makes the publisher.
        """
        try:
            return self.client(namespace).publisher(message, topic, seconds=10.0)
        except AssertionError:
            return self.client(namespace).publisher(message, topic)

    def close(self) -> None:
        """Destroys all clients and their contexts."""
        self._cleanup.close()


@pytest.fixture
def elsewhere(ros_domain: int) -> Iterator[Elsewhere]:
    with closing(Elsewhere(ros_domain)) as found:
        yield found


@pytest.mark.parametrize(
    ("topic", "message"),
    [("image/compressed", compressed()), ("jpegs", compressed()), ("raw/compressed", image(stamp=1))],
    ids=["by its name", "by its type", "raw by its type"],
)
def test_a_topic_is_read_as_its_publishers_type(
    context: Context, elsewhere: Elsewhere, topic: str, message: Any
) -> None:
    with Pipeline(context, head={}, backbone={"image_topics": [topic]}) as pipeline:
        elsewhere.publisher(pipeline.client.node.get_namespace(), type(message), topic).publish(message)
        assert pipeline.settled(1).published == 1


def test_a_topic_without_images_is_named_with_both_types(context: Context, elsewhere: Elsewhere) -> None:
    with Pipeline(context, head={}, backbone={"image_topics": ["words"]}) as pipeline:
        latched = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        log = pipeline.client.subscribe(Log, "/rosout", latched)
        talker = elsewhere.client(pipeline.client.node.get_namespace())
        talker.node.create_publisher(String, "words", 1)
        warning = "words has the type std_msgs/msg/String, and images are sensor_msgs/msg/Image or sensor_msgs/msg/"
        wait_until(lambda: any(warning in entry.msg for entry in log), "a warning about the type")
        reports = pipeline.client.subscribe(PipelineReport, "report")
        wait_until(lambda: reports and warning in reports[-1].fault, "a report with the same sentence")


@pytest.mark.parametrize(("height", "width"), [(2160, 3840), (4320, 7680)], ids=["4K", "8K"])
def test_large_images_arrive_if_both_sides_are_reliable(
    context: Context, elsewhere: Elsewhere, height: int, width: int
) -> None:
    """The middleware sends them in pieces."""
    count = 2
    with Pipeline(context, head={}, backbone={"image_reliability": "reliable", "image_depth": count}) as pipeline:
        images = elsewhere.publisher(pipeline.client.node.get_namespace(), Image, "image")
        for number in range(count):
            images.publish(image(height, width, stamp=number))
        counts = pipeline.settled(count)
        assert counts.dropped.get("middleware", 0) == 0


@pytest.mark.parametrize(("transport", "subscribed", "unsubscribed"), [
    ("raw", "image", "image/compressed"),
    ("compressed", "image/compressed", "image"),
])  # fmt: skip
def test_only_one_image_topic_is_subscribed(
    context: Context, transport: str, subscribed: str, unsubscribed: str
) -> None:
    """With both subscriptions, each frame would come twice."""
    with Pipeline(context, backbone={"image_transport": transport}) as pipeline:
        node = pipeline.client.node
        wait_until(lambda: node.count_subscribers(subscribed) == 1, f"the subscription of {subscribed}")
        assert node.count_subscribers(unsubscribed) == 0


@pytest.mark.parametrize("transport", ["raw", "compressed"])
def test_too_large_image_drops_as_too_large(context: Context, transport: str) -> None:
    with Pipeline(context, head={}, backbone={"max_image_pixels": 48 * 64, "image_transport": transport}) as pipeline:
        if transport == "raw":
            images = pipeline.client.publisher(Image, "image")
            messages: list[Any] = [image(48, 65), image(48, 64)]
        else:
            images = pipeline.client.publisher(CompressedImage, "image/compressed")
            messages = [compressed(width=65), compressed()]
        for message in messages:
            images.publish(message)
        counts = pipeline.settled(2)
        assert (counts.published, counts.dropped) == (1, {"too_large": 1})


def test_too_fast_camera_drops_as_rate_limited(context: Context) -> None:
    with Pipeline(context, head={}, backbone={"max_rate_hz": 0.001}) as pipeline:
        send(pipeline, 10)
        counts = pipeline.settled(10)
        assert (counts.published, counts.dropped) == (1, {"rate_limited": 9})
        assert pipeline.client.set("backbone", max_rate_hz=0.0) == [""]
        for number in range(3):  # one by one: what waits for a batch may be overrun
            send(pipeline, 1)
            assert pipeline.settled(11 + number).published == 2 + number


def test_pipeline_pauses_and_resumes(context: Context) -> None:
    with Pipeline(context, head={}, backbone={}) as pipeline:
        bytes_before = pipeline.backbone.stage.report(0.0).pool_bytes
        for turn in range(2):
            answer = pipeline.client.call(SetBool, "backbone/enable", SetBool.Request(data=False))
            assert (answer.success, "paused" in answer.message) == (True, True)
            send(pipeline, 3)
            assert pipeline.settled(4 * turn + 3).dropped == {"paused": 3 * (turn + 1)}
            assert pipeline.client.state("backbone") == "active"
            assert pipeline.backbone.stage.report(0.0).pool_bytes == bytes_before
            assert pipeline.client.call(SetBool, "backbone/enable", SetBool.Request(data=True)).success
            send(pipeline, 1)
            assert pipeline.settled(4 * turn + 4).published == turn + 1


def test_camera_may_change_size_and_encoding(context: Context) -> None:
    with Pipeline(context, head={"score_threshold": 0.0}, backbone={"drop_policy": "block"}) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        publisher = IntraProcessPublisher(pipeline.client.node, Image, "image", QoSProfile(depth=5))
        kinds = ["rgb8", "mono8", "bgra8", "nonsense", "mono16", "rgb8", "bgr8"]
        for number, kind in enumerate(kinds):
            publisher.publish(image(48 + 16 * number, 64, kind, stamp=number))
        counts = pipeline.settled(len(kinds))
        assert (counts.published, counts.dropped) == (len(kinds) - 1, {"unknown_encoding": 1})
        found = detections.wait_for(len(kinds) - 1)
        assert [message.header.stamp.nanosec for message in found] == [0, 1, 2, 4, 5, 6]


def test_batch_may_mix_image_kinds(context: Context) -> None:
    backbone = {"batch_size": 3, "batch_timeout_ms": 60_000.0, "drop_policy": "block"}
    with Pipeline(context, head={}, backbone=backbone) as pipeline:
        publisher = IntraProcessPublisher(pipeline.client.node, Image, "image", QoSProfile(depth=5))
        for height, kind in ((48, "rgb8"), (96, "mono8"), (64, "bgra8")):
            publisher.publish(image(height, 64, kind))
        assert pipeline.settled(3).published == 3
        assert pipeline.backbone.stage.report(0.0).batches == 1


@pytest.mark.parametrize("values", [[math.nan], [math.inf, -math.inf], [math.nan, 1.0, math.inf, 3e38, -3e38]])
def test_infinite_and_nan_pixels_are_harmless(context: Context, values: list[float]) -> None:
    depth = np.resize(np.array(values, np.float32), (48, 64))
    message = Image(height=48, width=64, encoding="32FC1", step=256, data=depth.tobytes())
    with Pipeline(context, head={"score_threshold": 0.0}, backbone={}) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        pipeline.client.publisher(Image, "image").publish(message)
        (found,) = detections.wait_for(1)
        for detection in found.detections:
            box = detection.bbox
            assert all(map(math.isfinite, (box.center.position.x, box.center.position.y, box.size_x, box.size_y)))
            assert math.isfinite(detection.results[0].hypothesis.score)
