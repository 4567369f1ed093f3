"""Support for tests of the nodes: a client, a pipeline of nodes, and executables as processes.

All waits are bounded by about ten times what they take on a busy machine with two cores.
"""

from __future__ import annotations

import array
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import rclpy
import torch
from ament_index_python.packages import get_package_prefix
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
from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.camera import CameraNode
from split_infer_ros.nodes.conversions import corners
from split_infer_ros.nodes.head import HeadNode
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.stats import StatsNode
from split_infer_ros.nodes.tenants import TenantsNode
from split_infer_ros.nodes.transports.network import NetworkSender
from split_infer_ros.pipeline.ledger import LedgerCounts

WAIT_S = 20.0
START_S = 60.0
RELIABLE = QoSProfile(depth=1000)
NODE_TYPES = {
    "stats": StatsNode,
    "head": HeadNode,
    "backbone": BackboneNode,
    "tenants": TenantsNode,
    "camera": CameraNode,
}

_numbers = itertools.count()


def wait_until(condition: Callable[[], Any], what: str | Callable[[], str], seconds: float = WAIT_S) -> Any:
    """Waits until ``condition`` returns something true, and returns that."""
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
    """A list of the messages that came in."""

    def wait_for(self, count: int, seconds: float = WAIT_S) -> list[Any]:
        """Waits for ``count`` messages and returns the first ones."""
        wait_until(lambda: len(self) >= count, lambda: f"{count} messages; there are {len(self)}", seconds)
        return self[:count]

    def wait_for_one(
        self, condition: Callable[[Any], bool], what: str | Callable[[], str], seconds: float = WAIT_S
    ) -> Any:
        """Waits for a message that meets the condition and returns the first one."""
        return wait_until(lambda: next(filter(condition, list(self)), None), what, seconds)


class Client:
    """A plain rclpy node that acts as a user. To the nodes under test it is remote, though it shares their process."""

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
        """Collects the messages on a topic, once it has a publisher."""
        received = Received()
        self.node.create_subscription(message, topic, received.append, qos)
        wait_until(lambda: self.node.count_publishers(topic), f"a publisher of {topic}", START_S)
        return received

    def publisher(self, message: type, topic: str, qos: QoSProfile = RELIABLE) -> Any:
        """Returns a publisher, once its topic has a subscriber."""
        publisher = self.node.create_publisher(message, topic, qos)
        wait_until(publisher.get_subscription_count, f"a subscriber of {topic}", START_S)
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
        """Sets parameters one by one, as ``ros2 param set`` does; returns why each was refused, or ''."""
        request = SetParameters.Request(parameters=_parameters(values))
        results = self.call(SetParameters, f"{node}/set_parameters", request).results
        return [result.reason if not result.successful else "" for result in results]

    def set_all(self, node: str, **values: Any) -> str:
        """Sets parameters all at once or not at all; returns why they were refused, or ''."""
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


class Pipeline:
    """Nodes of this process with their own executor and namespace, and a client.

    Args:
        context: the ROS context.
        parameters: the parameters of each node that runs, by its name. Weights are ``none`` unless given.
    """

    def __init__(self, context: Context, **parameters: Mapping[str, Any]) -> None:
        self.namespace = f"/n{next(_numbers)}"
        self.client = Client(context, self.namespace)
        self.nodes: dict[str, ManagedNode] = {}
        self._spinning = SpinningExecutor(context, "nodes")
        try:
            for name in NODE_TYPES:
                if name in parameters:
                    self.add(name, **parameters[name])
            if "head" in parameters and parameters.get("backbone", {}).get("transport") == "network":
                self._wait_for_head()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, name: str, **values: Any) -> ManagedNode:
        """Starts a node."""
        if name in ("backbone", "head"):
            values = {"weights": "none", **values}
        if name == "head":  # deep enough that no message is overwritten before a client takes it
            values = {f"qos_overrides.{self.namespace}/detections.publisher.depth": 1000, **values}
        for tenant in values.get("tenants", ()) if name == "tenants" else ():
            values = {f"qos_overrides.{self.namespace}/{tenant}/detections.publisher.depth": 1000, **values}
        node = NODE_TYPES[name](
            context=self.client.node.context,
            namespace=self.namespace,
            use_global_arguments=False,
            parameter_overrides=[Parameter(key, value=value) for key, value in values.items()],
        )
        self.nodes[name] = node
        self._spinning.executor.add_node(node)
        node.start()
        return node

    def _wait_for_head(self) -> None:
        """Waits for a chosen head whose topic DDS has matched. Frames that come earlier are lost."""
        sender = self.backbone.stage._transport
        assert isinstance(sender, NetworkSender)
        wait_until(lambda: sender._announced and sender._monitor.count_reached(sender._publisher), "a head", START_S)

    def remove(self, name: str) -> None:
        """Closes a node."""
        node = self.nodes.pop(name)
        self._spinning.executor.remove_node(node)
        node.close()

    def close(self) -> None:
        """Closes all nodes and the client."""
        self._spinning.stop()
        for node in reversed(self.nodes.values()):
            node.close()
        self.client.close()

    @property
    def backbone(self) -> BackboneNode:
        """The node ``backbone``."""
        node = self.nodes["backbone"]
        assert isinstance(node, BackboneNode)
        return node

    @property
    def counts(self) -> LedgerCounts:
        """The ledger's counts now, which must close at every instant."""
        counts = self.backbone.stage.ledger.counts()
        assert counts.balanced, counts
        return counts

    def settled(self, received: int) -> LedgerCounts:
        """Returns the counts once so many frames came in and none is in flight."""
        wait_until(
            lambda: self.counts.received >= received and not self.counts.in_flight,
            lambda: f"{received} frames settled: {self.counts}",
            START_S,
        )
        return self.counts


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
    """Returns an image of noise whose rows end with ``padding`` unused bytes."""
    size = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1}.get(encoding, 2)
    step = width * size + padding
    noise = random.Random(seed).randbytes(step * height)
    header = Header(stamp=Time(sec=stamp // 1000, nanosec=stamp % 1000), frame_id=frame_id)
    return Image(header=header, height=height, width=width, encoding=encoding, step=step, data=array.array("B", noise))


def detections_of(message: Detection2DArray, labels: Sequence[str]) -> Detections:
    """Returns the detections in a message; of several labels with one name, it takes the first."""
    hypotheses = [found.results[0].hypothesis for found in message.detections]
    return Detections(
        torch.tensor([corners(found) for found in message.detections], dtype=torch.float32).reshape(-1, 4),
        torch.tensor([hypothesis.score for hypothesis in hypotheses], dtype=torch.float32),
        torch.tensor([labels.index(hypothesis.class_id) for hypothesis in hypotheses], dtype=torch.int64),
    )


def shared_memory_of(process: int) -> set[Path]:
    """Returns the shared memory of Fast DDS that a process maps, without that of its whole domain."""
    try:
        words = Path(f"/proc/{process}/maps").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {Path(word) for word in words if word.startswith("/dev/shm/fast") and "_port" not in word}


class Process:
    """An executable of the package, started as ``ros2 run`` does. Its output is kept.

    Attributes:
        segments: the shared memory of Fast DDS that ``record_segments`` found.
    """

    def __init__(self, executable: str, *arguments: str) -> None:
        path = Path(get_package_prefix("split_infer_ros"), "lib/split_infer_ros", executable)
        self._printed = tempfile.TemporaryFile("w+")
        self._others = shared_memory_of(os.getpid())  # the shared memory of the test process, which stays
        self._popen = subprocess.Popen(
            [sys.executable, path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.segments: set[Path] = set()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Kills the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._printed.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def printed(self) -> str:
        """Everything that it printed so far."""
        self._printed.seek(0)
        return self._printed.read()

    @property
    def runs(self) -> bool:
        """False once it has ended."""
        return self._popen.poll() is None

    @property
    def handles_sigterm(self) -> bool:
        """True once the process handles SIGTERM itself, or has ended."""
        caught = self._status().partition("SigCgt:")[2].split() or ["0"]
        return not self.runs or bool(int(caught[0], 16) >> (signal.SIGTERM - 1) & 1)

    def maps(self, name: str) -> bool:
        """Returns whether it has mapped a file with such a name, such as a library, or has ended."""
        return not self.runs or name in self._status("maps")

    def record_segments(self) -> None:
        """Records which shared memory of Fast DDS it maps: its own, and that of others in its domain."""
        self.segments = shared_memory_of(self._popen.pid) - self._others

    @property
    def slot_segments(self) -> set[Path]:
        """The segments of slots that it has mapped."""
        return {Path(word) for word in self._status("maps").split() if word.startswith("/dev/shm/split_infer_")}

    @property
    def leftovers(self) -> list[str]:
        """What an ended process left behind, once the others of its domain have ended too."""
        left = [str(segment) for segment in self.segments if segment.exists()]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, 0)
            left.append(f"process group {self._popen.pid}")
        return left

    def _status(self, file: str = "status") -> str:
        try:
            return Path(f"/proc/{self._popen.pid}/{file}").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""

    def send(self, number: int) -> None:
        """Sends it a signal."""
        self._popen.send_signal(number)

    def wait(self, seconds: float = START_S) -> int:
        """Waits until it has ended and returns its exit code."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {seconds:g} s; it printed:\n{self.printed}") from None

    def wait_until_printed(self, words: str, seconds: float = START_S) -> None:
        """Waits until it has printed these words."""
        wait_until(lambda: words in self.printed or not self.runs, f"'{words}' printed", seconds)
        assert words in self.printed, self.printed


@dataclass(frozen=True)
class Footprint:
    """The resources that a process holds, as the operating system sees them."""

    at: float
    memory: int
    threads: int
    files: int
    segments: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        """Returns the present footprint of a process."""
        process = psutil.Process(pid)
        mapped = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm" in line}
        return cls(time.monotonic(), process.memory_info().rss, process.num_threads(), process.num_fds(), len(mapped))
