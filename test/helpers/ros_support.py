"""Support for tests of the nodes: a client, messages, and bounded waits.

All waits are bounded by about ten times what they take on a busy machine with two cores.
"""

from __future__ import annotations

import array
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters, SetParametersAtomically
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from rclpy.task import Future
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from split_infer_ros.models.detections import Detections
from split_infer_ros.nodes.conversions import corners

WAIT_S = 60.0
START_S = 60.0
RELIABLE = QoSProfile(depth=1000)


def wait_until(condition: Callable[[], Any], what: str | Callable[[], str], seconds: float = WAIT_S) -> Any:
    """Waits until ``condition`` returns a true value, and returns this value.

    Raises:
        AssertionError: that did not happen within ``seconds`` seconds. The message has ``what`` was awaited.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.005)
    return found


class SpinningExecutor:
    """An executor that spins on a thread of its own."""

    def __init__(self, context: Context, name: str) -> None:
        self.executor = SingleThreadedExecutor(context=context)
        self._end = Future()
        self._thread = threading.Thread(
            target=self.executor.spin_until_future_complete, args=(self._end,), name=name, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; a running callback finishes first."""
        self._end.set_result(None)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"{self._thread.name} hangs in a callback"
        self.executor.shutdown()


class Received(list[Any]):
    """A list of the messages that a subscription has received."""

    def wait_for(self, count: int, seconds: float = WAIT_S) -> list[Any]:
        """Waits for ``count`` messages, and returns the first ``count``."""
        wait_until(lambda: len(self) >= count, lambda: f"{count} messages; there are {len(self)}", seconds)
        return self[:count]

    def wait_for_one(
        self, condition: Callable[[Any], bool], what: str | Callable[[], str], seconds: float = WAIT_S
    ) -> Any:
        """Waits for a message that meets the condition, and returns the first such message."""
        return wait_until(lambda: next(filter(condition, list(self)), None), what, seconds)


class Client:
    """A plain rclpy node that acts as a user.

    The nodes under test see it as a remote node, although it is in their process.
    """

    def __init__(self, context: Context, namespace: str = "") -> None:
        self.node = Node("client", context=context, namespace=namespace, use_global_arguments=False)
        self._spinning = SpinningExecutor(context, "client")
        self._spinning.executor.add_node(self.node)
        self._services: dict[str, Any] = {}

    def close(self) -> None:
        """Destroys the node."""
        self._spinning.stop()
        self.node.destroy_node()

    def subscribe(self, message: type, topic: str, qos: QoSProfile = RELIABLE) -> Received:
        """Subscribes to a topic, and waits for a publisher. Returns the list to which received messages are added."""
        received = Received()
        self.node.create_subscription(message, topic, received.append, qos)
        wait_until(lambda: self.node.count_publishers(topic), f"a publisher of {topic}", START_S)
        return received

    def publisher(self, message: type, topic: str, qos: QoSProfile = RELIABLE, seconds: float = START_S) -> Any:
        """Makes a publisher, and returns it once a subscription has matched it."""
        publisher = self.node.create_publisher(message, topic, qos)
        full_name = self.node.resolve_topic_name(topic)

        def what() -> str:
            known = self.node.get_subscriptions_info_by_topic(full_name)
            return f"a subscription of {topic} that matches; known are {[info.topic_type for info in known]}"

        wait_until(publisher.get_subscription_count, what, seconds)
        return publisher

    def call(self, service: type, name: str, request: Any) -> Any:
        """Calls a service and returns its answer."""
        if name not in self._services:
            self._services[name] = self.node.create_client(service, name)
        client = self._services[name]
        wait_until(client.service_is_ready, f"the service {name}", START_S)
        # An answer is lost if the server sends it before it has discovered this client. So there is a second request.
        first = client.call_async(request)
        try:
            wait_until(first.done, f"an answer of {name}")
        except AssertionError:
            second = client.call_async(request)
            wait_until(lambda: first.done() or second.done(), f"an answer of {name}, asked twice")
            return (first if first.done() else second).result()
        return first.result()

    def set(self, node: str, **values: Any) -> list[str]:
        """Sets parameters one by one, as ``ros2 param set`` does. Returns why each was refused; '' if it was not."""
        request = SetParameters.Request(parameters=_parameters(values))
        results = self.call(SetParameters, f"{node}/set_parameters", request).results
        return [result.reason if not result.successful else "" for result in results]

    def set_all(self, node: str, **values: Any) -> str:
        """Sets all parameters at once or none. Returns why they were refused; '' if they were not."""
        request = SetParametersAtomically.Request(parameters=_parameters(values))
        result = self.call(SetParametersAtomically, f"{node}/set_parameters_atomically", request).result
        return result.reason if not result.successful else ""

    def get(self, node: str, name: str) -> Any:
        """Returns a parameter's value; None if there is no such parameter."""
        answer = self.call(GetParameters, f"{node}/get_parameters", GetParameters.Request(names=[name]))
        return rclpy.parameter.parameter_value_to_python(answer.values[0]) if answer.values else None

    def describe(self, node: str, *names: str) -> list[Any]:
        """Returns the descriptors of parameters."""
        request = DescribeParameters.Request(names=names)
        return list(self.call(DescribeParameters, f"{node}/describe_parameters", request).descriptors)

    def state(self, node: str) -> str:
        """Returns the state of a node's lifecycle."""
        return str(self.call(GetState, f"{node}/get_state", GetState.Request()).current_state.label)

    def transition(self, node: str, name: str) -> bool:
        """Triggers a transition of a node's lifecycle; returns whether it succeeded."""
        request = ChangeState.Request()
        request.transition.label = name
        return bool(self.call(ChangeState, f"{node}/change_state", request).success)


def _parameters(values: Mapping[str, Any]) -> list[Any]:
    return [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]


def image(
    height: int = 48,
    width: int = 64,
    encoding: str = "rgb8",
    *,
    stamp: int = 0,
    frame_id: str = "somewhere",
    padding: int = 0,
    seed: int = 0,
) -> Image:
    """Returns an image message of noise. Its rows end with ``padding`` unused bytes.

    The seconds of its stamp are ``stamp // 1000``, and the nanoseconds ``stamp % 1000``.
    """
    size = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1}.get(encoding, 2)
    step = width * size + padding
    noise = random.Random(seed).randbytes(step * height)
    header = Header(stamp=Time(sec=stamp // 1000, nanosec=stamp % 1000), frame_id=frame_id)
    return Image(header=header, height=height, width=width, encoding=encoding, step=step, data=array.array("B", noise))


def detections_of(message: Detection2DArray, labels: Sequence[str]) -> Detections:
    """Returns the detections in a message.

    ``labels`` are the names of the classes. If several classes have one name, the first is returned.
    """
    hypotheses = [found.results[0].hypothesis for found in message.detections]
    return Detections(
        np.array([corners(found) for found in message.detections], np.float32).reshape(-1, 4),
        np.array([hypothesis.score for hypothesis in hypotheses], np.float32),
        np.array([labels.index(hypothesis.class_id) for hypothesis in hypotheses], np.int64),
    )
