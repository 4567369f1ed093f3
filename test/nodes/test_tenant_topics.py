"""The topics of one tenant, without ROS."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")

from split_infer_ros.models.takes import Takes
from split_infer_ros.nodes import tenant_topics
from split_infer_ros.nodes.tenant_topics import TenantTopics


def test_camera_that_could_not_be_subscribed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    subscribed: list[str] = []

    def subscribe(node: object, topic: str, **_: object) -> SimpleNamespace:
        if topic == "bad":
            raise RuntimeError("no such policy")
        subscribed.append(topic)
        return SimpleNamespace(close=lambda: None, mismatch="")

    monkeypatch.setattr(tenant_topics, "ImageInput", subscribe)
    node: Any = SimpleNamespace(values=SimpleNamespace(max_rate_hz=0.0, has_own_heads=True))
    topics = TenantTopics(node, "front", Takes.IMAGES, intake=None, enable=None, reaches_head=lambda: True)  # type: ignore[arg-type]
    topics.subscribe("image")
    with pytest.raises(RuntimeError, match="no such policy"):
        topics.subscribe("bad")
    topics.subscribe("image")
    assert subscribed == ["image", "image"]
