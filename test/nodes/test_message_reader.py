"""A subscription read by a thread of its own: off the executor, held back while there is no room, ended cleanly."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rclpy
from rcl_interfaces.msg import Log
from rclpy.context import Context
from rclpy.logging import LoggingSeverity
from rclpy.node import Node
from rclpy.qos import QoSProfile
from ros_support import RELIABLE, WAIT_S, Client, Received, wait_until
from std_msgs.msg import String

from split_infer_ros.nodes.message_reader import MessageReader, OffExecutor

_numbers = itertools.count()


@pytest.fixture
def client(context: Context) -> Iterator[Client]:
    found = Client(context, f"/m{next(_numbers)}")
    yield found
    found.close()


class Reader(Received):
    """A reader that records its messages and the threads on which they came.

    Args:
        client: whose node subscribes.
        on_message: called with the text of each message.
    """

    def __init__(
        self,
        client: Client,
        on_message: Callable[[str], Any] = lambda text: None,
        wait_for_room: Callable[[float], bool] = lambda timeout_s: True,
    ) -> None:
        super().__init__()
        self.threads: set[threading.Thread] = set()
        self.sequence: list[int | None] = []
        self._on_message = on_message
        self.reader = MessageReader(
            client.node,
            lambda group: client.node.create_subscription(
                String, "topic", self._receive, QoSProfile(depth=5), callback_group=group
            ),
            wait_for_room,
        )

    def _receive(self, message: String, info: Any) -> None:
        self.threads.add(threading.current_thread())
        self.sequence.append(info.get("publication_sequence_number"))
        self._on_message(message.data)
        self.append(message.data)


def publish(publisher: Any, *texts: str) -> None:
    for text in texts:
        publisher.publish(String(data=text))


def test_messages_come_while_the_executor_is_busy(client: Client) -> None:
    reader = Reader(client)
    publisher = client.publisher(String, "topic")
    busy, done = threading.Event(), threading.Event()
    timer = client.node.create_timer(0.0, lambda: (busy.set(), done.wait(WAIT_S)))
    assert busy.wait(WAIT_S)
    publish(publisher, "one", "two")
    assert reader.wait_for(2) == ["one", "two"]
    assert {thread.name for thread in reader.threads} == {"images"}
    timer.cancel()
    done.set()
    reader.reader.close()


def test_messages_do_not_wake_the_executor(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each wait, the executor asks which entities it can execute. Fast DDS tells QoS events of messages too."""
    asked = Received()
    monkeypatch.setattr(OffExecutor, "can_execute", lambda group, entity: asked.append(entity))
    reader = Reader(client)
    publisher = client.publisher(String, "topic")
    wait_until(lambda: asked, "the executor to ask")
    before = len(asked)
    for number in range(50):
        publish(publisher, str(number))
        reader.wait_for(number + 1)
    assert len(asked) - before < 50
    reader.reader.close()


def test_messages_wait_in_order_while_there_is_no_room(client: Client) -> None:
    room = threading.Event()
    reader = Reader(client, wait_for_room=room.wait)
    publisher = client.publisher(String, "topic")
    publish(publisher, *"123456789")
    publisher.wait_for_all_acked()
    assert not reader
    room.set()
    assert reader.wait_for(5) == list("56789")  # the middleware keeps the newest five
    assert reader.sequence[0] is None or reader.sequence == list(range(5, 10))
    reader.reader.close()


def test_reading_goes_on_after_an_error(client: Client) -> None:
    def fail_once(text: str) -> None:
        if text == "bad":
            raise ValueError("a fault")

    reader = Reader(client, fail_once)
    logged = Received()
    client.node.create_subscription(Log, "/rosout", logged.append, RELIABLE)
    publish(client.publisher(String, "topic"), "bad", "good")
    assert reader.wait_for(1) == ["good"]
    said = logged.wait_for_one(lambda log: log.level == LoggingSeverity.ERROR, "the error in the log")
    assert said.msg.endswith("/topic: ValueError: a fault")
    reader.reader.close()


def test_close_lets_the_running_callback_finish(client: Client) -> None:
    entered, leave, closed = threading.Event(), threading.Event(), threading.Event()
    reader = Reader(client, lambda text: (entered.set(), leave.wait(WAIT_S)))
    publisher = client.publisher(String, "topic")
    publish(publisher, "held", "left")
    assert entered.wait(WAIT_S)
    closing = threading.Thread(target=lambda: (reader.reader.close(), closed.set()))
    closing.start()
    assert not closed.wait(0.2)
    leave.set()
    closing.join(WAIT_S)
    assert closed.is_set()
    assert reader == ["held"]
    assert not any(thread.is_alive() for thread in reader.threads)
    wait_until(lambda: publisher.get_subscription_count() == 0, "the subscription to leave")


def test_callback_may_close_its_reader(client: Client) -> None:
    reader = Reader(client, lambda text: reader.reader.close())
    publisher = client.publisher(String, "topic")
    publish(publisher, "one", "two")
    assert reader.wait_for(1) == ["one"]
    wait_until(lambda: publisher.get_subscription_count() == 0, "the subscription to leave")
    (thread,) = reader.threads
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_thread_ends_with_its_context(ros_domain: int) -> None:
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=ros_domain)
    node = Node("alone", context=context, use_global_arguments=False)
    before = set(threading.enumerate())
    MessageReader(
        node,
        lambda group: node.create_subscription(String, "topic", print, 5, callback_group=group),
        lambda timeout_s: True,
    )
    (thread,) = set(threading.enumerate()) - before
    rclpy.shutdown(context=context)
    thread.join(WAIT_S)
    assert not thread.is_alive()
