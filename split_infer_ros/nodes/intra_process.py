"""Topics that stay in the process: subscribers here get the object itself, DDS carries a message for others.

rclcpp has this built in and rclpy has not. As there: a publisher serialises only while somebody outside this
process subscribes; a subscription hears each message once, whichever way it came.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import MessageInfo

from split_infer_ros.nodes.endpoints import advertise, listen
from split_infer_ros.pipeline.bus import Bus

LOOK_S = 0.1  # the middleware takes 35 us to count subscribers, as long as a handle takes to its head

_bus = Bus()
_dds_subscriptions: Counter[tuple[int, str]] = Counter()
_local_publishers: dict[tuple[int, str], set[bytes]] = defaultdict(set)


def topic_key(node: Node, topic: str) -> tuple[int, str]:
    """A topic of one ROS context; a process may have several contexts."""
    return id(node.context), node.resolve_topic_name(topic)


class IntraProcessPublisher:
    """Publishes objects; ``to_message`` makes the ROS message of one when somebody outside wants it."""

    def __init__(
        self, node: Node, message: type, topic: str, qos: QoSProfile, to_message: Callable[[Any], Any] = lambda m: m
    ) -> None:
        self._node = node
        self._to_message = to_message
        self._key = topic_key(node, topic)
        # rclpy does not tell a publisher's identity: it is the one that is new (another process may have a node
        # of the same name)
        before = self._publisher_ids(of_any_node=True)  # the name of another process's node may come to be known late
        self._publisher = advertise(node, message, topic, qos)
        self._ids = self._publisher_ids() - before
        _local_publishers[self._key] |= self._ids
        self._looked_at = -math.inf
        self._is_heard_outside = False

    @property
    def has_outside_subscribers(self) -> bool:
        """True while somebody in another process (or outside the bus) subscribes; looked up ten times a second."""
        now = time.monotonic()
        if now - self._looked_at > LOOK_S:
            self._looked_at = now
            self._is_heard_outside = self._publisher.get_subscription_count() > _dds_subscriptions[self._key]
        return self._is_heard_outside

    @property
    def is_wanted(self) -> bool:
        """True while anybody subscribes, here or outside."""
        return _bus.has_receivers(self._key) or self.has_outside_subscribers

    def publish(self, thing: Any) -> int:
        """Hand the object to the subscribers here; returns how many there are."""
        receivers = _bus.publish(self._key, thing)
        if self.has_outside_subscribers:
            self._publisher.publish(self._to_message(thing))
        return receivers

    def destroy(self) -> None:
        """Leave the topic."""
        _local_publishers[self._key] -= self._ids
        self._node.destroy_publisher(self._publisher)

    def _publisher_ids(self, of_any_node: bool = False) -> set[bytes]:
        """Of this topic's publishers: of those that bear this node's name, or of all."""
        name = self._node.get_name(), self._node.get_namespace()
        return {
            bytes(info.endpoint_gid)
            for info in self._node.get_publishers_info_by_topic(self._key[1])
            if of_any_node or (info.node_name, info.node_namespace) == name
        }


class IntraProcessSubscription:
    """Receives objects published in this process, on the publisher's thread, and messages from outside.

    Args:
        receive: called with each object published here, on the publisher's thread; must be quick.
        from_outside: called with each message from elsewhere, on the executor's thread; without it nothing
            from outside is listened to.
        on_gap: called with the number of messages that a publisher sent and the middleware lost.
    """

    def __init__(
        self,
        node: Node,
        message: type,
        topic: str,
        qos: QoSProfile,
        receive: Callable[[Any], None],
        from_outside: Callable[[Any], None] | None = None,
        on_gap: Callable[[int], None] | None = None,
        callback_group: CallbackGroup | None = None,
    ) -> None:
        self._node = node
        self._key = topic_key(node, topic)
        self._receive_outside = from_outside
        self._on_gap = on_gap
        self._last: dict[bytes, int] = {}
        self._receive = receive
        self._unsubscribe = _bus.subscribe(self._key, self._hear_here)
        self._subscription = None
        if from_outside is not None:
            _dds_subscriptions[self._key] += 1
            self._subscription = listen(node, message, topic, self._hear, qos, callback_group)

    def destroy(self) -> None:
        """Leave the topic."""
        self._unsubscribe()
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None
            _dds_subscriptions[self._key] -= 1

    def _hear_here(self, thing: Any) -> None:
        try:
            self._receive(thing)
        except Exception as error:  # a subscriber's fault is not the publisher's
            self._node.get_logger().error(f"{self._key[1]}: {type(error).__name__}: {error}", throttle_duration_sec=5.0)

    def _hear(self, message: Any, info: MessageInfo) -> None:
        gid = info.get("publisher_gid")  # not in every release of rclpy
        publisher = bytes(gid["data"]) if gid else b""
        if self._receive_outside is None or publisher in _local_publishers[self._key]:
            return  # it came over the bus already
        sequence = info.get("publication_sequence_number")
        if sequence is not None:
            gap = sequence - self._last.get(publisher, sequence - 1) - 1
            self._last[publisher] = sequence
            if gap > 0 and self._on_gap is not None:
                self._on_gap(gap)
        self._receive_outside(message)
