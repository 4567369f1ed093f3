"""Creates publishers, subscriptions and timers.

Parameters may override the QoS of publishers and subscriptions, and a QoS mismatch is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_policy_name_from_kind
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.timer import Timer
from rclpy.topic_endpoint_info import TopicEndpointInfo

from split_infer_ros.nodes.ros_text import publish_any_text

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)  # late subscribers get the last message


def create_publisher(node: Node, message: type, topic: str, qos: QoSProfile) -> Any:
    """Creates a publisher. Parameters ``qos_overrides.*`` may change its history, depth and reliability.

    The publisher repairs texts that ROS would refuse; see ``publish_any_text``.
    """
    qos = copy(qos)  # rclpy writes the overrides into it
    warn = partial(_warn_of_mismatch, node, topic, "publisher", qos, node.get_subscriptions_info_by_topic)
    publisher: Any = node.create_publisher(
        message,
        topic,
        qos,
        event_callbacks=PublisherEventCallbacks(incompatible_qos=warn),
        qos_overriding_options=QoSOverridingOptions.with_default_policies(),
    )
    publisher.publish = publish_any_text(publisher.publish)
    return publisher


def create_subscription(
    node: Node,
    message: type,
    topic: str,
    callback: Callable[..., None],
    qos: QoSProfile,
    callback_group: CallbackGroup | None = None,
    on_liveliness: Callable[[Any], None] | None = None,
) -> Any:
    """Creates a subscription. Parameters ``qos_overrides.*`` may change its history, depth and reliability.

    Args:
        node: the node that subscribes.
        message: the type of the messages.
        topic: the topic.
        callback: called with each message.
        qos: the profile without overrides.
        callback_group: the group of the callback. The default is the node's default group.
        on_liveliness: called when a publisher comes, leaves or falls silent.
    """
    qos = copy(qos)  # rclpy writes the overrides into it
    warn = partial(_warn_of_mismatch, node, topic, "subscription", qos, node.get_publishers_info_by_topic)
    return node.create_subscription(
        message,
        topic,
        callback,
        qos,
        callback_group=callback_group,
        event_callbacks=SubscriptionEventCallbacks(incompatible_qos=warn, liveliness=on_liveliness),
        qos_overriding_options=QoSOverridingOptions.with_default_policies(),
    )


def create_steady_timer(node: Node, period_s: float, callback: Callable[[], None]) -> Timer:
    """Creates a timer that calls ``callback`` every ``period_s`` seconds of the steady clock.

    ROS's clock would not do, because simulated time may stand still, jump or never come.
    """
    return node.create_timer(period_s, callback, clock=Clock(clock_type=ClockType.STEADY_TIME))


def _warn_of_mismatch(
    node: Node,
    topic: str,
    kind: str,
    local: QoSProfile,
    find_remotes: Callable[[str], Sequence[TopicEndpointInfo]],
    event: Any,
) -> None:
    """Logs both sides of a QoS mismatch. Without this warning, nothing would arrive and nothing would say why."""
    topic = node.resolve_topic_name(topic)
    policy = qos_policy_name_from_kind(event.last_policy_kind).lower()
    mismatched = {
        f"{remote.node_namespace.rstrip('/')}/{remote.node_name} ({_setting(remote.qos_profile, policy)})"
        for remote in find_remotes(topic)
        if _setting(remote.qos_profile, policy) != _setting(local, policy)
    }
    node.get_logger().warning(
        f"{topic}: the {kind} here ({_setting(local, policy)}) and "
        f"{' or '.join(sorted(mismatched)) or 'another node'} do not match in {policy}, "
        "so no message passes between them. Set one to match the other "
        f"(here with the parameter qos_overrides.{topic}.{kind}.{policy})."
    )


def _setting(qos: QoSProfile, policy: str) -> str:
    value = getattr(qos, policy, "?")
    return str(getattr(value, "name", value)).lower()
