"""The parameter ``lazy``: nothing is computed while nobody subscribes to the results."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import image, wait_until
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from split_infer_ros.nodes.tenants import TenantsNode

RESULTS = [("detections", Detection2DArray), ("detections/image", Image)]


def unsubscribe(pipeline: Pipeline, topic: str) -> None:
    """Ends the client's subscription of a topic."""
    node = pipeline.client.node
    for subscription in list(node.subscriptions):
        if subscription.topic_name == node.resolve_topic_name(topic):
            node.destroy_subscription(subscription)


def wait_for_head(pipeline: Pipeline, is_there: bool) -> None:
    """Waits until the backbone reaches a head, or until it reaches none."""
    wait_until(lambda: pipeline.backbone.pipeline.reaches_head() == is_there, f"a head: {is_there}")


@pytest.mark.parametrize("transport", ["intra_process", "shared_memory", "network"])
def test_frames_are_computed_only_while_somebody_listens(context: Context, transport: str) -> None:
    parameters = {"transport": transport}
    with Pipeline(context, head=parameters, backbone=parameters) as pipeline:
        client, batches = pipeline.client, lambda: pipeline.backbone.stage.report(time.monotonic()).batches
        images = client.publisher(Image, "image")
        assert [*client.set("head", lazy=True), *client.set("backbone", lazy=True)] == ["", ""]
        wait_for_head(pipeline, False)
        for turn in range(2):
            received = 3 * turn
            images.publish(image())
            images.publish(image())
            assert pipeline.settled(received + 2).dropped == {"nobody_listens": 2 * (turn + 1)}
            assert batches() == turn
            detections = client.subscribe(Detection2DArray, "detections")
            wait_for_head(pipeline, True)
            images.publish(image())
            assert pipeline.settled(received + 3).published == turn + 1
            detections.wait_for(1)
            unsubscribe(pipeline, "detections")
            wait_for_head(pipeline, False)
        assert client.set("head", lazy=False) == [""]
        wait_for_head(pipeline, True)
        images.publish(image())
        assert pipeline.settled(7).published == 3


@pytest.mark.parametrize(("topic", "message"), RESULTS)
def test_a_subscriber_of_any_result_counts(context: Context, topic: str, message: type) -> None:
    with Pipeline(context, head={"lazy": True}, backbone={"lazy": True}) as pipeline:
        images = pipeline.client.publisher(Image, "image")
        images.publish(image())
        assert pipeline.settled(1).dropped == {"nobody_listens": 1}
        found = pipeline.client.subscribe(message, topic)
        wait_for_head(pipeline, True)
        images.publish(image())
        assert pipeline.settled(2).published == 1
        found.wait_for(1)


def test_a_head_that_is_not_lazy_keeps_a_lazy_backbone_at_work(context: Context) -> None:
    with Pipeline(context, head={}, backbone={"lazy": True}) as pipeline:
        pipeline.client.publisher(Image, "image").publish(image())
        assert pipeline.settled(1).published == 1


def test_each_tenant_is_lazy_on_its_own(context: Context) -> None:
    names = ("left", "right")
    values: dict[str, Any] = {f"tenant.{name}.model": "shapes" for name in names}
    values |= {f"tenant.{name}.weights": "none" for name in names}
    values |= {"tenants": list(names), "engine": "torch", "lazy": True}
    with Pipeline(context, tenants=values) as pipeline:
        node = pipeline.nodes["tenants"]
        assert isinstance(node, TenantsNode)
        view = node.pipeline.view

        images = {name: pipeline.client.publisher(Image, f"{name}/image") for name in names}
        pipeline.client.subscribe(Detection2DArray, "left/detections")

        def is_served() -> bool:
            images["left"].publish(image())
            time.sleep(0.05)
            return view.ledger("left").counts().published > 0

        wait_until(is_served, "a frame of left")
        images["right"].publish(image())
        wait_until(lambda: view.ledger("right").counts().received, "a frame of right")
        assert view.ledger("right").counts().dropped == {"nobody_listens": 1}
        unsubscribe(pipeline, "left/detections")

        def is_unheard() -> bool:
            before = view.ledger("left").counts().dropped.get("nobody_listens", 0)
            images["left"].publish(image())
            time.sleep(0.05)
            return view.ledger("left").counts().dropped.get("nobody_listens", 0) > before

        wait_until(is_unheard, "a frame that nobody listens to")
        assert view.ledger("left").counts().balanced
