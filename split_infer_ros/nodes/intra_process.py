"""Topics within one process: local subscribers get the object itself, and DDS carries a message to remote subscribers.

rclcpp has this built in; rclpy has not. A publisher serialises only while a remote subscriber exists. A subscription
receives each message once, whichever way it came.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import MessageInfo

from split_infer_ros.nodes.endpoints import create_publisher, create_subscription
from split_infer_ros.nodes.message_reader import MessageReader

COUNT_PERIOD_S = 0.1  # the middleware needs 35 us to count subscribers, as long as a handle travels to its head


class Bus:
    """The topics of one process: subscribers get the published object itself. Any thread may use it.

    The publisher's thread calls each subscriber. A subscriber with work to do puts the message into its own queue
    and returns.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: dict[Hashable, tuple[Callable[[Any], None], ...]] = {}

    def subscribe(self, topic: Hashable, receive: Callable[[Any], None]) -> Callable[[], None]:
        """Calls ``receive`` with each message on the topic from now on. Returns a function that ends this."""
        with self._lock:
            self._subscribers[topic] = (*self._subscribers.get(topic, ()), receive)

        def unsubscribe() -> None:
            with self._lock:
                remaining = list(self._subscribers.get(topic, ()))
                if receive in remaining:
                    remaining.remove(receive)
                    self._subscribers[topic] = tuple(remaining)

        return unsubscribe

    def has_subscribers(self, topic: Hashable) -> bool:
        """Returns whether the topic has a subscriber."""
        return bool(self._subscribers.get(topic))

    def publish(self, topic: Hashable, message: Any) -> int:
        """Calls all subscribers of the topic with the message. Returns how many there were."""
        subscribers = self._subscribers.get(topic, ())
        for receive in subscribers:
            receive(message)
        return len(subscribers)


_bus = Bus()
_dds_subscriptions: Counter[tuple[int, str]] = Counter()
_local_publishers: dict[tuple[int, str], set[bytes]] = defaultdict(set)


def topic_key(node: Node, topic: str) -> tuple[int, str]:
    """Returns a topic's key for the ``Bus``: the node's ROS context and the topic's full name.

    A process may have several contexts.
    """
    return id(node.context), node.resolve_topic_name(topic)


class IntraProcessPublisher:
    """Publishes objects to local subscribers, and messages made from the objects to remote subscribers.

    Args:
        node: the node that publishes.
        message: the type of the ROS message.
        topic: the topic.
        qos: the profile towards remote subscribers.
        to_message: makes the ROS message, or its serialised bytes, from an object. It is called only while a remote
            subscriber exists.
        to_object: makes what local subscribers get from a published object. It is called only while a local
            subscriber exists.
    """

    def __init__(
        self,
        node: Node,
        message: type,
        topic: str,
        qos: QoSProfile,
        to_message: Callable[[Any], Any] = lambda published: published,
        to_object: Callable[[Any], Any] = lambda published: published,
    ) -> None:
        self._node = node
        self._to_message = to_message
        self._to_object = to_object
        self._key = topic_key(node, topic)
        # rclpy does not tell a publisher's identity, so the new identity is taken. A node of the same name may publish
        # from another process, and DDS may learn its name late. So ``before`` takes the publishers of any node.
        before = self._publisher_ids(of_any_node=True)
        self._publisher = create_publisher(node, message, topic, qos)
        self._ids = self._publisher_ids() - before
        _local_publishers[self._key] |= self._ids
        self._counted_at = -math.inf
        self._has_remote_subscribers = False

    @property
    def has_remote_subscribers(self) -> bool:
        """True while DDS has a subscriber that the bus does not reach.

        Such a subscriber is in another process, or is one of this process that uses DDS. This is checked at most ten
        times a second.
        """
        now = time.monotonic()
        if now - self._counted_at > COUNT_PERIOD_S:
            self._counted_at = now
            subscriptions = self._publisher.get_subscription_count()
            self._has_remote_subscribers = subscriptions > _dds_subscriptions[self._key]
        return self._has_remote_subscribers

    @property
    def has_subscribers(self) -> bool:
        """True while a local or remote subscriber exists."""
        return _bus.has_subscribers(self._key) or self.has_remote_subscribers

    def publish(self, published: Any) -> int:
        """Gives an object to local and remote subscribers. Returns the number of local subscribers."""
        subscribers = 0
        if _bus.has_subscribers(self._key):
            subscribers = _bus.publish(self._key, self._to_object(published))
        if self.has_remote_subscribers:
            self._publisher.publish(self._to_message(published))
        return subscribers

    def destroy(self) -> None:
        """Removes the publisher from the topic."""
        _local_publishers[self._key] -= self._ids
        self._node.destroy_publisher(self._publisher)

    def _publisher_ids(self, of_any_node: bool = False) -> set[bytes]:
        """Returns the identities of the topic's publishers in nodes of this node's name, or in any node."""
        name = self._node.get_name(), self._node.get_namespace()
        return {
            bytes(info.endpoint_gid)
            for info in self._node.get_publishers_info_by_topic(self._key[1])
            if of_any_node or (info.node_name, info.node_namespace) == name
        }


class IntraProcessSubscription:
    """Receives objects that are published in this process, and messages from other processes.

    Args:
        node: the node that subscribes.
        message: the type of the ROS message.
        topic: the topic.
        qos: the profile towards remote publishers.
        receive: called with each local object on the publisher's thread; must be quick.
        receive_remote: called with each remote message. Without it, the subscription is local.
        on_lost: called with the number of messages that a publisher sent and the middleware lost.
        wait_for_room: called with a time-out in seconds; returns whether the subscriber has room for a message. If it
            is given, a thread of the subscription reads each remote message once there is room. If None, the node's
            executor reads remote messages.
    """

    def __init__(
        self,
        node: Node,
        message: type,
        topic: str,
        qos: QoSProfile,
        *,
        receive: Callable[[Any], None],
        receive_remote: Callable[[Any], None] | None = None,
        on_lost: Callable[[int], None] | None = None,
        wait_for_room: Callable[[float], bool] | None = None,
    ) -> None:
        self._node = node
        self._key = topic_key(node, topic)
        self._receive = receive
        self._receive_remote = receive_remote
        self._on_lost = on_lost
        self._last_sequence: dict[bytes, int] = {}  # by publisher
        self._unsubscribe = _bus.subscribe(self._key, self._on_local)
        self._remove: Callable[[], object] | None = None
        if receive_remote is not None:
            _dds_subscriptions[self._key] += 1
            create = partial(create_subscription, node, message, topic, self._on_remote, qos)
            if wait_for_room is not None:
                self._remove = MessageReader(node, create, wait_for_room).close
            else:
                self._remove = partial(node.destroy_subscription, create())

    def destroy(self) -> None:
        """Removes the subscription from the topic."""
        self._unsubscribe()
        if self._remove is not None:
            self._remove()
            self._remove = None
            _dds_subscriptions[self._key] -= 1

    def _on_local(self, published: Any) -> None:
        try:
            self._receive(published)
        except Exception as error:  # a subscriber's error must not reach the publisher
            self._node.get_logger().error(f"{self._key[1]}: {type(error).__name__}: {error}", throttle_duration_sec=5.0)

    def _on_remote(self, message: Any, info: MessageInfo) -> None:
        gid = info.get("publisher_gid")  # not every release of rclpy has it
        publisher = bytes(gid["data"]) if gid else b""
        if self._receive_remote is None or publisher in _local_publishers[self._key]:
            return  # the message came over the bus already
        sequence = info.get("publication_sequence_number")
        if sequence is not None:
            lost = sequence - self._last_sequence.get(publisher, sequence - 1) - 1
            self._last_sequence[publisher] = sequence
            if lost > 0 and self._on_lost is not None:
                self._on_lost(lost)
        self._receive_remote(message)
