"""A thread that reads one subscription without an executor.

For each message, rclpy's executors build a wait set of all entities of their nodes, in Python. That takes longer than
reading an image. This thread keeps one wait set. The wait set holds the subscription, its QoS events and a guard
condition that ends the wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from rclpy.callback_groups import CallbackGroup, MutuallyExclusiveCallbackGroup
from rclpy.guard_condition import GuardCondition
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile

from split_infer_ros.nodes.endpoints import create_subscription

WAIT_NS = 500_000_000  # how often the thread checks that the context still exists
ROOM_TIMEOUT_S = 0.1
RETRY_S = 0.1  # pause after an error of rclpy
LOG_PERIOD_S = 5.0


class OffExecutor(MutuallyExclusiveCallbackGroup):
    """A callback group that no executor executes.

    Before each wait, the executors of Jazzy and Kilted ask each entity's group whether it ``can_execute``. If the
    group cannot, they leave the entity out. rclpy's experimental events executor does not ask. A subscription's QoS
    events must be left out too: with every message, Fast DDS wakes the threads that wait for these events.
    """

    def can_execute(self, entity: Any) -> bool:
        return False


class MessageReader:
    """Reads a subscription on a thread of its own and calls the subscription's callbacks there, until ``close``.

    Args:
        node: the subscription's node.
        create: called with a callback group; creates the subscription in that group. The subscription's callback must
            take the message and its ``MessageInfo``.
        wait_for_room: called with a time-out in seconds before each message. While it returns False, messages stay
            with the middleware.
        name: the thread's name.
    """

    def __init__(
        self,
        node: Node,
        create: Callable[[CallbackGroup], Any],
        wait_for_room: Callable[[float], bool] = lambda timeout_s: True,
        name: str = "images",
    ) -> None:
        self._node = node
        self._context = node.context
        self._wait_for_room = wait_for_room
        self._closing = False
        self._subscription = create(OffExecutor())
        self._end_wait = GuardCondition(None, None, self._context)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread once it is done with its current message, and removes the subscription from its topic."""
        self._closing = True
        self._end_wait.trigger()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        # The thread holds handles of both; neither is freed before the thread ends.
        self._node.destroy_subscription(self._subscription)
        self._end_wait.destroy()

    @property
    def _goes_on(self) -> bool:
        return not self._closing and self._context.ok()

    def _run(self) -> None:
        context: Any = self._context.handle
        events = self._subscription.event_handlers
        with ExitStack() as in_use:
            for handle in (context, self._subscription.handle, self._end_wait.handle, *events):
                in_use.enter_context(handle)
            wait_set = rclpy_implementation.WaitSet(1, 1, 0, 0, 0, len(events), context)
            while self._goes_on:
                try:
                    self._read(wait_set)
                except Exception as error:  # the thread must go on, because no other thread reads the next messages
                    if not self._goes_on:
                        return
                    self._node.get_logger().error(
                        f"{self._subscription.topic_name}: {type(error).__name__}: {error}",
                        throttle_duration_sec=LOG_PERIOD_S,
                    )
                    time.sleep(RETRY_S)

    def _read(self, wait_set: Any) -> None:
        """Waits for a message or a QoS event and passes it on. Returns after a time-out too, or if there is no room."""
        if not self._wait_for_room(ROOM_TIMEOUT_S) or self._closing:
            return
        wait_set.clear_entities()
        wait_set.add_subscription(self._subscription.handle)
        wait_set.add_guard_condition(self._end_wait.handle)
        for event in self._subscription.event_handlers:
            event.add_to_wait_set(wait_set)
        wait_set.wait(WAIT_NS)
        for event in self._subscription.event_handlers:
            if event.is_ready(wait_set) and (found := event.take_data()) is not None:
                event.callback(found)
        if self._closing or not wait_set.is_ready("subscription", 0):
            return
        taken = self._subscription.handle.take_message(self._subscription.msg_type, False)
        if taken is not None:  # the message may be gone: another one displaced it, or it was lost
            self._subscription.callback(*taken)


def read_messages(
    node: Node,
    message: type,
    topic: str,
    receive: Callable[[Any], None],
    qos: QoSProfile,
    *,
    name: str,
    on_liveliness: Callable[[Any], None] | None = None,
) -> MessageReader:
    """Subscribes to a topic, and reads its messages on a thread of its own.

    Args:
        node: the node that subscribes.
        message: the type of the messages.
        topic: the topic.
        receive: called with each message, on the thread.
        qos: the profile without overrides.
        name: the thread's name.
        on_liveliness: called when a publisher comes, leaves or falls silent.
    """
    create = partial(
        create_subscription,
        node,
        message,
        topic,
        lambda taken, info: receive(taken),
        qos,
        on_liveliness=on_liveliness,
    )
    return MessageReader(node, create, name=name)
