from __future__ import annotations

import threading
from typing import Any

from split_infer_ros.nodes.bus import Bus


def test_object_arrives_in_the_publishers_thread() -> None:
    bus = Bus()
    received: list[tuple[Any, int]] = []
    bus.subscribe("features", lambda message: received.append((message, threading.get_ident())))
    message = object()
    assert bus.publish("features", message) == 1
    assert received == [(message, threading.get_ident())]
    assert received[0][0] is message


def test_topics_are_independent() -> None:
    bus = Bus()
    received: list[Any] = []
    bus.subscribe("features", received.append)
    assert bus.publish("detections", 1) == 0
    assert received == []
    assert bus.has_subscribers("features")
    assert not bus.has_subscribers("detections")


def test_each_subscription_ends_alone_and_once() -> None:
    bus = Bus()
    received: list[Any] = []
    first = bus.subscribe("features", received.append)
    second = bus.subscribe("features", received.append)
    assert bus.publish("features", 1) == 2
    first()
    assert bus.publish("features", 2) == 1
    second()
    second()
    assert not bus.has_subscribers("features")
    assert bus.publish("features", 3) == 0
    assert received == [1, 1, 2]


def test_subscriber_may_unsubscribe_itself() -> None:
    bus = Bus()
    received: list[Any] = []

    def once(message: Any) -> None:
        received.append(message)
        end()

    end = bus.subscribe("features", once)
    bus.subscribe("features", received.append)
    assert bus.publish("features", 1) == 2
    assert bus.publish("features", 2) == 1
    assert received == [1, 1, 2]


def test_many_threads_subscribe_and_unsubscribe() -> None:
    bus = Bus()
    received: list[Any] = []
    bus.subscribe("features", received.append)

    def come_and_go() -> None:
        for _ in range(300):
            bus.subscribe("features", lambda message: None)()

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(300):
        bus.publish("features", number)
    for thread in threads:
        thread.join(60.0)
    assert received == list(range(300))
    assert bus.publish("features", 300) == 1
