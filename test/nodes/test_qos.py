"""Quality of service: all publishers are received, parameters override every endpoint, mismatches are logged."""

from __future__ import annotations

from typing import Any

import pytest
from rcl_interfaces.msg import Log
from rclpy.context import Context
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from ros_pipeline import Pipeline
from ros_support import Received, image, wait_until
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=5, reliability=ReliabilityPolicy.RELIABLE)
CAMERA = {"width": 64, "height": 48, "rate_hz": 20.0}


def endpoints(pipeline: Pipeline, node: str, topic: str, kind: str) -> list[Any]:
    """Returns a node's publishers or subscriptions of a topic, as other nodes see them."""
    name = pipeline.client.node.resolve_topic_name(topic)
    query = getattr(pipeline.client.node, f"get_{kind}s_info_by_topic")
    return [info for info in query(name) if (info.node_namespace, info.node_name) == (pipeline.namespace, node)]


def log(pipeline: Pipeline) -> Received:
    return pipeline.client.subscribe(Log, "/rosout", QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL))


def mismatch(pipeline: Pipeline, log_messages: Received) -> str:
    """Returns the warning of this pipeline. Nodes of other tests may still log as well."""
    start = f"{pipeline.namespace}/"
    return log_messages.wait_for_one(
        lambda line: line.msg.startswith(start) and "do not match" in line.msg, "a warning"
    ).msg


@pytest.mark.parametrize("qos", [BEST_EFFORT, RELIABLE], ids=["best_effort", "reliable"])
def test_both_reliabilities_are_received(context: Context, qos: QoSProfile) -> None:
    with Pipeline(context, head={}, backbone={}) as pipeline:
        pipeline.client.publisher(Image, "image", qos).publish(image())
        assert pipeline.settled(1).published == 1


def test_qos_mismatch_names_both_sides(context: Context) -> None:
    with Pipeline(context, backbone={"image_reliability": "reliable"}) as pipeline:
        log_messages = log(pipeline)
        pipeline.client.node.create_publisher(Image, "image", RELIABLE)  # this one matches
        pipeline.client.node.create_publisher(Image, "image", BEST_EFFORT)
        warning = mismatch(pipeline, log_messages)
        for words in (
            f"{pipeline.namespace}/image",
            "the subscription here (reliable)",
            f"{pipeline.namespace}/client (best_effort)",
            "do not match in reliability",
            f"qos_overrides.{pipeline.namespace}/image.subscription.reliability",
        ):
            assert words in warning
        assert "client (reliable)" not in warning


def test_mismatch_of_a_publisher_is_logged(context: Context) -> None:
    with Pipeline(context) as pipeline:
        log_messages = log(pipeline)
        pipeline.add("head", **{f"qos_overrides.{pipeline.namespace}/detections.publisher.reliability": "best_effort"})
        pipeline.client.node.create_subscription(Detection2DArray, "detections", print, RELIABLE)
        warning = mismatch(pipeline, log_messages)
        assert "the publisher here (best_effort)" in warning
        assert f"{pipeline.namespace}/client (reliable)" in warning


ENDPOINTS = [
    ("camera", "image", "publisher"),
    ("camera", "truth", "publisher"),
    ("backbone", "features", "publisher"),
    ("backbone", "report", "publisher"),
    ("head", "detections", "publisher"),
    ("head", "detections/image", "publisher"),
    ("head", "vision_info", "publisher"),
    ("stats", "stats", "publisher"),
    ("stats", "/diagnostics", "publisher"),
    ("stats", "report", "subscription"),
]


def test_qos_of_every_endpoint_can_be_overridden(context: Context) -> None:
    with Pipeline(context) as pipeline:

        def full_name(topic: str) -> str:
            return pipeline.client.node.resolve_topic_name(topic)

        parameters: dict[str, dict[str, Any]] = {"stats": {}, "head": {}, "backbone": {}, "camera": dict(CAMERA)}
        for node, topic, kind in ENDPOINTS:
            parameters[node][f"qos_overrides.{full_name(topic)}.{kind}.reliability"] = "best_effort"
            parameters[node][f"qos_overrides.{full_name(topic)}.{kind}.depth"] = 7
        parameters["backbone"][f"qos_overrides.{full_name('image')}.subscription.reliability"] = "reliable"
        for node, values in parameters.items():
            pipeline.add(node, **values)
        for node, topic, kind in ENDPOINTS:
            (info,) = wait_until(lambda: endpoints(pipeline, node, topic, kind), f"{node}'s {kind} of {topic}")
            assert info.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT, (node, topic)
            assert pipeline.client.get(node, f"qos_overrides.{full_name(topic)}.{kind}.depth") == 7
        (info,) = wait_until(lambda: endpoints(pipeline, "backbone", "image", "subscription"), "the image's")
        assert info.qos_profile.reliability == ReliabilityPolicy.RELIABLE
        assert pipeline.settled(1).published  # (best-effort publishers within this process need no DDS)


@pytest.mark.parametrize("transport", ["shared_memory", "network"])
def test_qos_of_other_transports_can_be_overridden(context: Context, transport: str) -> None:
    topic = {"shared_memory": "features", "network": "features/data"}[transport]
    with Pipeline(context) as pipeline:
        name = f"qos_overrides.{pipeline.namespace}/"
        pipeline.add(
            "head",
            transport=transport,
            **{
                f"{name}{topic}.subscription.reliability": "best_effort",
                f"{name}features/release.publisher.reliability": "best_effort",
            },
        )
        pipeline.add(
            "backbone",
            transport=transport,
            **{
                f"{name}{topic}.publisher.reliability": "best_effort",
                f"{name}features/release.subscription.reliability": "best_effort",
            },
        )
        for node, where, kind in (
            ("head", topic, "subscription"),
            ("head", "features/release", "publisher"),
            ("backbone", topic, "publisher"),
            ("backbone", "features/release", "subscription"),
        ):
            (info,) = wait_until(lambda: endpoints(pipeline, node, where, kind), f"{node}'s {kind} of {where}")
            assert info.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT, (node, where)
    nodes = {name: {"transport": transport} for name in ("backbone", "head")}  # without overrides
    with Pipeline(context, **nodes) as pipeline:
        (info,) = wait_until(lambda: endpoints(pipeline, "head", "features/release", "publisher"), "the publisher")
        assert info.qos_profile.reliability == ReliabilityPolicy.RELIABLE


def test_qos_override_survives_a_restart(context: Context) -> None:
    with Pipeline(context) as pipeline:
        name = f"qos_overrides.{pipeline.namespace}/image.subscription.reliability"
        pipeline.add("backbone", **{name: "reliable"})
        for _ in range(2):
            for transition in ("deactivate", "cleanup", "configure", "activate"):
                assert pipeline.client.transition("backbone", transition)
        (info,) = wait_until(lambda: endpoints(pipeline, "backbone", "image", "subscription"), "the subscription")
        assert info.qos_profile.reliability == ReliabilityPolicy.RELIABLE
