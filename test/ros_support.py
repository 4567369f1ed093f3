"""What a user of the nodes has at hand: a client that listens, publishes, sets parameters and changes states.

All waits are bounded, by about ten times what they take on a busy machine with two cores.
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
    """Look until ``condition`` gives something true, and return that."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.005)
    return found


class SpinningExecutor:
    """An executor on a thread of its own."""

    def __init__(self, context: Context, name: str) -> None:
        self.executor = SingleThreadedExecutor(context=context)
        self._end = Future()
        self._thread = threading.Thread(
            target=self.executor.spin_until_future_complete, args=(self._end,), name=name, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a callback that runs finishes first."""
        self._end.set_result(None)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"{self._thread.name} hangs in a callback"
        self.executor.shutdown()


class Received(list[Any]):
    """Messages as they come in."""

    def wait_for(self, count: int, seconds: float = WAIT_S) -> list[Any]:
        """The first ``count`` of them."""
        wait_until(lambda: len(self) >= count, lambda: f"{count} messages; there are {len(self)}", seconds)
        return self[:count]

    def wait_for_one(
        self, condition: Callable[[Any], bool], what: str | Callable[[], str], seconds: float = WAIT_S
    ) -> Any:
        """The first of them that is so."""
        return wait_until(lambda: next(filter(condition, list(self)), None), what, seconds)


class Client:
    """A plain rclpy node: to the nodes under test it is somebody outside, though it shares their process."""

    def __init__(self, context: Context, namespace: str = "") -> None:
        self.node = Node("client", context=context, namespace=namespace, use_global_arguments=False)
        self._spinning = SpinningExecutor(context, "client")
        self._spinning.executor.add_node(self.node)
        self._services: dict[str, Any] = {}

    def close(self) -> None:
        """Leave ROS."""
        self._spinning.stop()
        self.node.destroy_node()

    def subscribe(self, message: type, topic: str, qos: QoSProfile = RELIABLE) -> Received:
        """Collect what is published on a topic, once somebody publishes there."""
        received = Received()
        self.node.create_subscription(message, topic, received.append, qos)
        wait_until(lambda: self.node.count_publishers(topic), f"a publisher of {topic}", START_S)
        return received

    def publisher(self, message: type, topic: str, qos: QoSProfile = RELIABLE) -> Any:
        """A publisher that somebody listens to."""
        publisher = self.node.create_publisher(message, topic, qos)
        wait_until(publisher.get_subscription_count, f"a subscriber of {topic}", START_S)
        return publisher

    def call(self, service: type, name: str, request: Any) -> Any:
        """A service's answer."""
        if name not in self._services:
            self._services[name] = self.node.create_client(service, name)
        client = self._services[name]
        wait_until(client.service_is_ready, f"the service {name}", START_S)
        # An answer is lost if the server gives it before it has found this client's reader: so a second question.
        first = client.call_async(request)
        try:
            wait_until(first.done, f"an answer of {name}")
        except AssertionError:
            second = client.call_async(request)
            wait_until(lambda: first.done() or second.done(), f"an answer of {name}, asked twice")
            return (first if first.done() else second).result()
        return first.result()

    def set(self, node: str, **values: Any) -> list[str]:
        """Set parameters one by one, as ``ros2 param set`` does; returns why each was refused, or ''."""
        request = SetParameters.Request(parameters=_parameters(values))
        results = self.call(SetParameters, f"{node}/set_parameters", request).results
        return [result.reason if not result.successful else "" for result in results]

    def set_all(self, node: str, **values: Any) -> str:
        """Set parameters all at once or not at all; returns why they were refused, or ''."""
        request = SetParametersAtomically.Request(parameters=_parameters(values))
        result = self.call(SetParametersAtomically, f"{node}/set_parameters_atomically", request).result
        return result.reason if not result.successful else ""

    def get(self, node: str, name: str) -> Any:
        """A parameter's value; None if there is no such parameter."""
        answer = self.call(GetParameters, f"{node}/get_parameters", GetParameters.Request(names=[name]))
        return rclpy.parameter.parameter_value_to_python(answer.values[0]) if answer.values else None

    def describe(self, node: str, *names: str) -> list[Any]:
        """Descriptors of parameters."""
        request = DescribeParameters.Request(names=names)
        return list(self.call(DescribeParameters, f"{node}/describe_parameters", request).descriptors)

    def state(self, node: str) -> str:
        """Of its lifecycle."""
        return str(self.call(GetState, f"{node}/get_state", GetState.Request()).current_state.label)

    def transition(self, node: str, name: str) -> bool:
        """Have a node's lifecycle change; returns whether it did."""
        request = ChangeState.Request()
        request.transition.label = name
        return bool(self.call(ChangeState, f"{node}/change_state", request).success)


def _parameters(values: Mapping[str, Any]) -> list[Any]:
    return [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]


class Pipeline:
    """Nodes of this process on an executor of their own, in a namespace of their own, with a client.

    Args:
        context: ROS's.
        parameters: of each node, by its name; what is not named does not run. Weights are ``none`` unless given.
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
        """Start a node."""
        if name in ("backbone", "head"):
            values = {"weights": "none", **values}
        if name == "head":  # none is overwritten before the client has taken it, however busy the machine is
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
        """Frames that come before a head is chosen are lost, and so are those before DDS has matched its topic."""
        sender = self.backbone.stage._transport
        assert isinstance(sender, NetworkSender)
        wait_until(lambda: sender._announced and sender._monitor.count_reached(sender._publisher), "a head", START_S)

    def remove(self, name: str) -> None:
        """End a node."""
        node = self.nodes.pop(name)
        self._spinning.executor.remove_node(node)
        node.close()

    def close(self) -> None:
        """End all."""
        self._spinning.stop()
        for node in reversed(self.nodes.values()):
            node.close()
        self.client.close()

    @property
    def backbone(self) -> BackboneNode:
        """The backbone's node."""
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
        """The counts once so many frames came in and none is under way."""
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
    """An image of noise, with rows that are ``padding`` bytes longer than they need to be."""
    size = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1}.get(encoding, 2)
    step = width * size + padding
    noise = random.Random(seed).randbytes(step * height)
    header = Header(stamp=Time(sec=stamp // 1000, nanosec=stamp % 1000), frame_id=frame_id)
    return Image(header=header, height=height, width=width, encoding=encoding, step=step, data=array.array("B", noise))


def detections_of(message: Detection2DArray, labels: Sequence[str]) -> Detections:
    """What a message says was found; of several labels of one name, the first."""
    hypotheses = [found.results[0].hypothesis for found in message.detections]
    return Detections(
        torch.tensor([corners(found) for found in message.detections], dtype=torch.float32).reshape(-1, 4),
        torch.tensor([hypothesis.score for hypothesis in hypotheses], dtype=torch.float32),
        torch.tensor([labels.index(hypothesis.class_id) for hypothesis in hypotheses], dtype=torch.int64),
    )


def shared_memory_of(process: int) -> set[Path]:
    """Shared memory of Fast DDS that a process maps, apart from what belongs to its whole domain."""
    try:
        words = Path(f"/proc/{process}/maps").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {Path(word) for word in words if word.startswith("/dev/shm/fast") and "_port" not in word}


class Process:
    """An executable of the package, started as ``ros2 run`` does; what it prints is kept.

    Attributes:
        segments: the shared memory that it mapped, as seen by ``record_segments``.
    """

    def __init__(self, executable: str, *arguments: str) -> None:
        path = Path(get_package_prefix("split_infer_ros"), "lib/split_infer_ros", executable)
        self._printed = tempfile.TemporaryFile("w+")
        self._others = shared_memory_of(os.getpid())  # the tests' own, which stays
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
        """End it for sure, with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._printed.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._popen.pid

    @property
    def printed(self) -> str:
        """All that it printed so far."""
        self._printed.seek(0)
        return self._printed.read()

    @property
    def runs(self) -> bool:
        """False once it has ended."""
        return self._popen.poll() is None

    @property
    def handles_sigterm(self) -> bool:
        """True once it has its own way to end when SIGTERM comes; also once it has ended."""
        caught = self._status().partition("SigCgt:")[2].split() or ["0"]
        return not self.runs or bool(int(caught[0], 16) >> (signal.SIGTERM - 1) & 1)

    def maps(self, name: str) -> bool:
        """True once it has a file of such a name in memory, such as a library; also once it has ended."""
        return not self.runs or name in self._status("maps")

    def record_segments(self) -> None:
        """Note which shared memory it uses: its own and what others of its domain gave it to read."""
        self.segments = shared_memory_of(self._popen.pid) - self._others

    @property
    def slot_segments(self) -> set[Path]:
        """The rings of features that it has in memory."""
        return {Path(word) for word in self._status("maps").split() if word.startswith("/dev/shm/split_infer_")}

    @property
    def leftovers(self) -> list[str]:
        """What is still there of an ended process, once those of its domain have ended too."""
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
        """Send it a signal."""
        self._popen.send_signal(number)

    def wait(self, seconds: float = START_S) -> int:
        """Its exit code, once it has ended."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {seconds:g} s; it printed:\n{self.printed}") from None

    def wait_until_printed(self, words: str, seconds: float = START_S) -> None:
        """Wait until it has said so."""
        wait_until(lambda: words in self.printed or not self.runs, f"'{words}' printed", seconds)
        assert words in self.printed, self.printed


@dataclass(frozen=True)
class Footprint:
    """What a process holds, seen from outside."""

    at: float
    memory: int
    threads: int
    files: int
    segments: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        """The one that it has now."""
        process = psutil.Process(pid)
        mapped = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm" in line}
        return cls(time.monotonic(), process.memory_info().rss, process.num_threads(), process.num_fds(), len(mapped))
