"""Publishers and subscriptions as users expect them: QoS overridable by parameters, mismatches said aloud."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import QoSProfile, qos_policy_name_from_kind
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.topic_endpoint_info import TopicEndpointInfo


def advertise(node: Node, message: type, topic: str, qos: QoSProfile) -> Any:
    """A publisher whose history, depth and reliability ``qos_overrides.*`` parameters may change."""
    name = node.resolve_topic_name(topic)
    qos = copy(qos)  # rclpy writes the overrides into it

    def mismatch(event: Any) -> None:
        _warn(node, name, "publisher", qos, event.last_policy_kind, node.get_subscriptions_info_by_topic(name))

    return node.create_publisher(
        message,
        topic,
        qos,
        event_callbacks=PublisherEventCallbacks(incompatible_qos=mismatch),
        qos_overriding_options=QoSOverridingOptions.with_default_policies(),
    )


def listen(
    node: Node,
    message: type,
    topic: str,
    callback: Callable[..., None],
    qos: QoSProfile,
    callback_group: CallbackGroup | None = None,
    on_liveliness: Callable[[Any], None] | None = None,
) -> Any:
    """A subscription whose history, depth and reliability ``qos_overrides.*`` parameters may change.

    ``on_liveliness`` is called when a publisher comes, leaves or falls silent.
    """
    name = node.resolve_topic_name(topic)
    qos = copy(qos)  # rclpy writes the overrides into it

    def mismatch(event: Any) -> None:
        _warn(node, name, "subscription", qos, event.last_policy_kind, node.get_publishers_info_by_topic(name))

    return node.create_subscription(
        message,
        topic,
        callback,
        qos,
        callback_group=callback_group,
        event_callbacks=SubscriptionEventCallbacks(incompatible_qos=mismatch, liveliness=on_liveliness),
        qos_overriding_options=QoSOverridingOptions.with_default_policies(),
    )


def _warn(
    node: Node, topic: str, kind: str, mine: QoSProfile, policy: Any, others: Sequence[TopicEndpointInfo]
) -> None:
    """Name both sides: without this, nothing would arrive and nothing would say why."""
    name = qos_policy_name_from_kind(policy).lower()
    sides = {
        f"{other.node_namespace.rstrip('/')}/{other.node_name} ({_setting(other.qos_profile, name)})"
        for other in others
        if _setting(other.qos_profile, name) != _setting(mine, name)
    }
    node.get_logger().warning(
        f"{topic}: the {kind} here ({_setting(mine, name)}) and {' or '.join(sorted(sides)) or 'another node'} "
        f"do not match in {name}, so nothing passes between them; set one as the other is "
        f"(here by the parameter qos_overrides.{topic}.{kind}.{name})."
    )


def _setting(qos: QoSProfile, policy: str) -> str:
    value = getattr(qos, policy, "?")
    return str(getattr(value, "name", value)).lower()
