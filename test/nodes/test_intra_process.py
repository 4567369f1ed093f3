"""Within a process nodes exchange the object itself. DDS carries it to others, and none receives it twice."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import rclpy
from rclpy.context import Context
from rclpy.qos import QoSProfile
from ros_pipeline import Pipeline, wait_for_match
from ros_support import RELIABLE, Client, Received, image, wait_until
from sensor_msgs.msg import Image
from std_msgs.msg import String

from split_infer_ros.buffers.pool import FeatureReader, SlotPool
from split_infer_ros.buffers.slots import Lease
from split_infer_ros.nodes.intra_process import Bus, IntraProcessPublisher, IntraProcessSubscription
from split_infer_ros.nodes.result_publisher import ResultPublisher
from split_infer_ros.nodes.transports.intra_process import IntraProcessSender
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.head_stage import HeadStage

_numbers = itertools.count()


@pytest.fixture
def client(context: Context) -> Iterator[Client]:
    found = Client(context, f"/i{next(_numbers)}")
    yield found
    found.close()


@pytest.fixture
def remote(ros_domain: int, client: Client) -> Iterator[Client]:
    """A client that acts as another process: in the same namespace, with its own ROS context."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=ros_domain)
    found = Client(context, client.node.get_namespace())
    yield found
    found.close()
    rclpy.try_shutdown(context=context)


class LocalSubscriber(Received):
    """A local subscriber that records on which threads it was called."""

    def __init__(
        self, client: Client, message: type, topic: str, receive_remote: bool = False, depth: int = 200
    ) -> None:
        super().__init__()
        self.threads: set[str] = set()
        self.missed = 0
        self.subscription = IntraProcessSubscription(
            client.node,
            message,
            topic,
            QoSProfile(depth=depth),
            receive=self._receive,
            receive_remote=self._receive if receive_remote else None,
            on_lost=self._count,
        )

    def _receive(self, thing: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.append(thing)

    def _count(self, missed: int) -> None:
        self.missed += missed


class CountingPublisher(IntraProcessPublisher):
    """Publishes any object, and counts how often it was converted to a message."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.node, String, "topic", RELIABLE, self._convert)
        self.converted = 0

    def _convert(self, thing: Any) -> String:
        self.converted += 1
        return String(data=str(thing))


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


def test_local_subscribers_get_the_object_at_once(client: Client) -> None:
    first, second, publisher = (
        LocalSubscriber(client, String, "topic"),
        LocalSubscriber(client, String, "topic"),
        CountingPublisher(client),
    )
    thing = object()
    assert publisher.publish(thing) == 2
    assert first[0] is thing
    assert second[0] is thing
    assert first.threads == {threading.current_thread().name}


def test_dds_is_used_only_with_remote_subscribers(client: Client, remote: Client) -> None:
    subscriber, publisher = LocalSubscriber(client, String, "topic", receive_remote=True), CountingPublisher(client)
    assert not publisher.has_remote_subscribers
    publisher.publish("alone")
    assert publisher.converted == 0

    outside = remote.subscribe(String, "topic")
    wait_until(lambda: publisher.has_remote_subscribers, "a match")
    publisher.publish("watched")
    assert [message.data for message in outside.wait_for(1)] == ["watched"]
    assert publisher.converted == 1

    for subscription in list(remote.node.subscriptions):
        remote.node.destroy_subscription(subscription)
    wait_until(lambda: not publisher.has_remote_subscribers, "the remote to leave")
    publisher.publish("alone again")
    assert publisher.converted == 1
    assert subscriber == ["alone", "watched", "alone again"]


def test_local_object_is_made_only_for_subscribers(client: Client) -> None:
    made: list[str] = []
    publisher = IntraProcessPublisher(
        client.node, String, "topic", RELIABLE, to_object=lambda thing: (made.append(thing), thing.upper())[1]
    )
    assert publisher.publish("unheard") == 0
    subscriber = LocalSubscriber(client, String, "topic")
    assert publisher.publish("heard") == 1
    assert (made, subscriber) == (["heard"], ["HEARD"])


def test_local_subscriber_receives_each_message_once(client: Client, remote: Client) -> None:
    subscriber, publisher = LocalSubscriber(client, String, "topic", receive_remote=True), CountingPublisher(client)
    outside = remote.subscribe(String, "topic")
    plain = client.subscribe(String, "topic")  # rclpy's own subscription, in this process
    wait_for_match(client.node, "topic", 3)
    wait_until(lambda: publisher.has_remote_subscribers, "the publisher to notice")
    for number in range(50):
        publisher.publish(number)
    expected = [str(number) for number in range(50)]
    assert [message.data for message in outside.wait_for(50)] == expected
    assert [message.data for message in plain.wait_for(50)] == expected
    assert subscriber == list(range(50))
    assert subscriber.missed == 0


def test_remote_messages_are_received(client: Client, remote: Client) -> None:
    subscriber, publisher = LocalSubscriber(client, String, "topic", receive_remote=True), CountingPublisher(client)
    assert publisher.has_subscribers
    remote.publisher(String, "topic").publish(String(data="from outside"))
    (message,) = subscriber.wait_for(1)
    assert message.data == "from outside"
    assert subscriber.threads == {"client"}  # the executor's thread
    subscriber.subscription.destroy()
    wait_until(lambda: not publisher.has_subscribers, "nobody to subscribe any more")


def test_remote_node_of_the_same_name_is_received(client: Client, remote: Client) -> None:
    subscriber = LocalSubscriber(client, String, "topic", receive_remote=True)
    remote_publisher = remote.publisher(String, "topic")
    wait_until(lambda: client.node.count_publishers("topic") == 1, "the remote to be seen")
    CountingPublisher(client).publish("ours")
    remote_publisher.publish(String(data="theirs"))
    assert subscriber.wait_for(2)[0] == "ours"
    assert subscriber[1].data == "theirs"


def test_local_subscription_ignores_remote_publishers(client: Client, remote: Client) -> None:
    LocalSubscriber(client, String, "topic")
    assert remote.node.count_subscribers("topic") == 0
    assert client.node.count_subscribers("topic") == 0


def test_failing_subscriber_does_not_affect_others(client: Client) -> None:
    def fail(thing: Any) -> None:
        raise ValueError("a fault")

    IntraProcessSubscription(client.node, String, "topic", RELIABLE, receive=fail)
    subscriber, publisher = LocalSubscriber(client, String, "topic"), CountingPublisher(client)
    publisher.publish("one")
    assert subscriber == ["one"]


def test_lost_messages_are_counted_for_each_publisher(client: Client, remote: Client) -> None:
    subscriber = LocalSubscriber(client, String, "topic", receive_remote=True, depth=5)
    publishers = [remote.publisher(String, "topic", QoSProfile(depth=5)) for _ in range(2)]
    for publisher in publishers:
        publisher.publish(String(data="first"))
    subscriber.wait_for(2)
    assert subscriber.missed == 0

    busy, done = threading.Event(), threading.Event()
    client.node.create_timer(0.0, lambda: (busy.set(), done.wait(20)))  # holds the executor up
    assert busy.wait(20)
    for _ in range(20):
        for publisher in publishers:
            publisher.publish(String(data="flood"))
    wait_until(lambda: all(publisher.wait_for_all_acked() for publisher in publishers), "receipt")
    done.set()
    wait_until(
        lambda: len(subscriber) + subscriber.missed == 42, f"{len(subscriber)} heard and {subscriber.missed} missed"
    )
    assert subscriber.missed >= 20


# The same in a running pipeline.


@pytest.fixture
def pipeline(context: Context) -> Iterator[Pipeline]:
    with Pipeline(context, head={}, backbone={}) as found:
        yield found


def test_head_gets_the_object_and_uses_its_own_threads(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, received, threads = [], [], []
    send, submit, publish = IntraProcessSender.send, HeadStage.submit, ResultPublisher.publish

    def record_handle(stage: HeadStage, handle: Handle, reader: FeatureReader) -> None:
        received.append((handle, threading.current_thread().name))
        submit(stage, handle, reader)

    monkeypatch.setattr(IntraProcessSender, "send", lambda *a: (sent.append(a[1]), send(*a))[1])
    monkeypatch.setattr(HeadStage, "submit", record_handle)
    monkeypatch.setattr(
        ResultPublisher,
        "publish",
        lambda *a: (threads.append(threading.current_thread().name), publish(*a)),
    )
    with Pipeline(context, head={}, backbone={}) as pipeline:
        images = pipeline.client.publisher(Image, "image")
        for _ in range(3):
            images.publish(image())
            pipeline.settled(len(threads) + 1)
        assert [type(handle) for handle, _ in received] == 3 * [Handle]
        assert all(arrived is original for (arrived, _), original in zip(received, sent, strict=True))
        assert {thread for _, thread in received} == {"dispatch"}
        assert threads == 3 * ["postprocess"]


def test_frame_over_bus_and_dds_is_counted_once(context: Context) -> None:
    camera = {"width": 64, "height": 48, "rate_hz": 50.0, "autostart": False}
    with Pipeline(context, head={}, backbone={}, camera=camera) as pipeline:
        assert pipeline.client.transition("camera", "configure")
        watched = pipeline.client.subscribe(Image, "image")
        wait_for_match(pipeline.nodes["camera"], "image", 2)  # the backbone's and this one
        assert pipeline.client.transition("camera", "activate")
        watched.wait_for(30)
        assert pipeline.client.transition("camera", "deactivate")
        counts = pipeline.settled(30)
        wait_until(lambda: len(watched) >= counts.received, "all images")
        assert counts.received == len(watched) == len({image.header.stamp.nanosec for image in watched})
        assert "middleware" not in counts.dropped


def test_stale_handle_is_refused_and_counted(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Handle, SlotPool]] = []
    send = IntraProcessSender.send
    monkeypatch.setattr(IntraProcessSender, "send", lambda *a: (sent.append(a[1:]), send(*a))[1])
    images = pipeline.client.publisher(Image, "image")
    images.publish(image())
    before = pipeline.settled(1)
    used, pool = sent[0]
    head = pipeline.nodes["head"].stage

    head.submit(used, pool)
    wait_until(lambda: head.refused["released"] == 1, "the second release to be refused")
    foreign = replace(used, lease=Lease(1, 0, 1))
    head.submit(foreign, pool)
    wait_until(lambda: head.refused["foreign"] == 1, "the foreign handle to be refused")
    for number in range(4):  # as many as there are slots: the handle's slot has moved on
        images.publish(image())
        pipeline.settled(before.received + 1 + number)
    head.submit(used, pool)
    wait_until(lambda: head.refused["stale"] == 1, "the stale handle to be refused")
    assert pipeline.counts.published == pipeline.counts.received == before.received + 4
