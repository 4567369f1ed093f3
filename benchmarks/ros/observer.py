"""Observes nodes from outside: by a node in the benchmark's own process, and by the detections that arrive there."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import rclpy
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParametersAtomically
from rclpy.client import Client
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.task import Future
from vision_msgs.msg import Detection2DArray

START_S = 120.0
ANSWER_S = 20.0
STOP_S = 10.0
QUIET_S = 0.12  # if nothing arrives for this time, nothing is in flight any more
MIN_ARRIVALS = 3  # the fewest arrivals in a measurement
POLL_S = 0.005


def stamp_ns(message: bytes) -> int:
    """Returns the stamp in nanoseconds of a serialised message that begins with a header.

    The middleware's four bytes in front name the byte order: the second byte is odd for little-endian.
    """
    seconds, nanoseconds = struct.unpack_from("<iI" if message[1] & 1 else ">iI", message, 4)
    return int(seconds) * 10**9 + int(nanoseconds)


class SpinningExecutor:
    """Runs a node's callbacks on a thread of their own."""

    def __init__(self, node: Node) -> None:
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)
        self._end = Future[None]()
        self._thread = threading.Thread(
            target=self._executor.spin_until_future_complete, args=(self._end,), name=node.get_name(), daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; a running callback finishes first."""
        self._end.set_result(None)
        self._thread.join(STOP_S)
        self._executor.shutdown()


class Observer:
    """A node of this process. It subscribes to topics, sets parameters of other nodes, and changes their states."""

    def __init__(self) -> None:
        rclpy.init()
        self._node = rclpy.create_node("observer")
        self._spinning = SpinningExecutor(self._node)
        self._clients: dict[str, Client] = {}

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spinning.stop()
        self._node.destroy_node()
        rclpy.try_shutdown()

    def subscribe(self, message: type, topic: str, receive: Callable[[Any], None], raw: bool = False) -> None:
        """Subscribes to a topic. ``receive`` is called with every message, or with its serialised bytes if ``raw``."""
        self._node.create_subscription(message, topic, receive, 100, raw=raw)

    def set(self, node: str, **values: Any) -> None:
        """Sets parameters of a node.

        Raises:
            RuntimeError: the node refused a value, or did not answer.
        """
        parameters = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        request = SetParametersAtomically.Request(parameters=parameters)
        result = self._call(SetParametersAtomically, f"{node}/set_parameters_atomically", request).result
        if not result.successful:
            raise RuntimeError(f"{node} refused {values}: {result.reason}")

    def transition(self, node: str, name: str) -> None:
        """Triggers a transition of a lifecycle node: ``activate`` or ``deactivate``.

        Raises:
            RuntimeError: the node refused, or did not answer.
        """
        request = ChangeState.Request()
        request.transition.label = name
        if not self._call(ChangeState, f"{node}/change_state", request).success:
            raise RuntimeError(f"{node} did not {name}.")

    def wait_for_nodes(self, *topics: str) -> None:
        """Waits until each topic has a publisher and a subscriber.

        Raises:
            RuntimeError: a topic lacks one of the two after ``START_S`` seconds.
        """
        end = time.monotonic() + START_S
        for topic in topics:
            while not (self._node.count_publishers(topic) and self._node.count_subscribers(topic)):
                if time.monotonic() > end:
                    raise RuntimeError(f"Nobody publishes or subscribes to {topic} after {START_S:g} s.")
                time.sleep(0.05)

    def wait_for_subscriber(self, topic: str) -> None:
        """Waits until somebody subscribes to a topic; raises RuntimeError after ``START_S`` seconds."""
        end = time.monotonic() + START_S
        while not self._node.count_subscribers(topic):
            if time.monotonic() > end:
                raise RuntimeError(f"Nobody subscribes to {topic} after {START_S:g} s.")
            time.sleep(0.05)

    def _call(self, service: type, name: str, request: Any) -> Any:
        if name not in self._clients:  # finding a service takes longer than calling it
            self._clients[name] = self._node.create_client(service, name)
        client = self._clients[name]
        if client.wait_for_service(START_S):
            future = client.call_async(request)
            end = time.monotonic() + START_S  # a change of settings waits while a rival is compiled
            while not future.done() and time.monotonic() < end:
                time.sleep(0.002)
            if future.done():
                return future.result()
        raise RuntimeError(f"The service {name} did not answer.")


class Arrivals:
    """Records when detections arrived, and how old their images were. An age is the time since the image's stamp.

    It reads only the stamps of messages, because rclpy needs 3 ms of a core to make objects of 48 boxes. The rivals
    need the cores.
    """

    def __init__(self, observer: Observer, topic: str) -> None:
        self._topic = topic
        self._arrivals: list[tuple[float, float]] = []
        observer.subscribe(Detection2DArray, topic, self._receive, raw=True)

    def _receive(self, found: bytes) -> None:
        age = (time.time_ns() - stamp_ns(found)) / 1e9
        self._arrivals.append((time.monotonic(), age))

    def settle(self, seconds: float) -> None:
        """Waits for ``seconds`` seconds, and then for a new arrival if there was none.

        Raises:
            RuntimeError: nothing arrives within ``ANSWER_S`` seconds.
        """
        count = len(self._arrivals)
        time.sleep(seconds)
        self.wait_for(count + 1)

    def during(self, seconds: float) -> tuple[float, list[float]]:
        """Returns the rate (1/s) and the ages (s) of the arrivals in the next ``seconds`` seconds.

        If fewer than ``MIN_ARRIVALS`` come, it waits longer.

        Raises:
            RuntimeError: fewer than ``MIN_ARRIVALS`` have come after ``ANSWER_S`` more seconds.
        """
        begin, first = time.monotonic(), len(self._arrivals)
        time.sleep(seconds)
        self.wait_for(first + MIN_ARRIVALS)
        end = time.monotonic()
        ages = [age for at, age in self._arrivals[first:] if at < end]
        return len(ages) / (end - begin), ages

    @property
    def count(self) -> int:
        """How many detections arrived so far."""
        return len(self._arrivals)

    def since(self, count: int) -> list[tuple[float, float]]:
        """Returns all arrivals but the first ``count``: their times on the steady clock and their ages, in seconds."""
        return self._arrivals[count:]

    def ages_since(self, count: int) -> list[float]:
        """Returns the ages of all arrivals but the first ``count``, in seconds."""
        return [age for _, age in self.since(count)]

    def wait_for_first(self) -> None:
        """Waits for the next arrival, of a node that starts; raises RuntimeError after ``START_S`` seconds."""
        self.wait_for(len(self._arrivals) + 1, START_S)

    def wait_for(self, count: int, seconds: float = ANSWER_S) -> None:
        """Waits until ``count`` detections have arrived; raises RuntimeError after ``seconds`` seconds."""
        end = time.monotonic() + seconds
        while len(self._arrivals) < count:
            if time.monotonic() > end:
                raise RuntimeError(f"Hardly anything is published on {self._topic}.")
            time.sleep(POLL_S)

    def wait_for_quiet(self) -> None:
        """Waits until nothing has arrived for ``QUIET_S`` seconds. The next rival then has the machine for itself."""
        while True:
            count = len(self._arrivals)
            time.sleep(QUIET_S)
            if len(self._arrivals) == count:
                return
