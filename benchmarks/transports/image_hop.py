"""Sends 1080p images from one process to another, one at a time. Measures how long an image takes, and how many arrive.

    python benchmarks transports.image_hop receive NAME

starts the sender and reads lines "RELIABILITY COUNT" from its standard input. For each line, it lets the sender send
COUNT images, each when the image before has arrived or its time is over. It prints their median seconds from publish to
callback, and the share of images that arrived. As for any node, the environment selects the Fast DDS profile.
"""

from __future__ import annotations

import array
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

from benchmarks.common.child_process import to_run
from benchmarks.ros.line_process import LineProcess

HEIGHT, WIDTH = 1080, 1920
RELIABLE, BEST_EFFORT = "reliable", "best_effort"
TIMEOUT_S = {RELIABLE: 5.0, BEST_EFFORT: 0.25}  # several times as long as an image takes
WARM_UP = 3
SEND, RECEIVE = "send", "receive"


class ImageHop(LineProcess):
    """Starts and controls a sender and a receiver of images, from the process of the benchmark.

    Both are processes of their own, with the same Fast DDS profile.

    Args:
        name: the name of the pair of processes. No other pair may have the same name.
        environment: the environment of both processes.
    """

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        super().__init__([*to_run(__name__), RECEIVE, name], environment, answers=True)

    def __enter__(self) -> ImageHop:
        return self

    def wait_until_ready(self) -> list[int]:
        """Waits until both processes are connected; returns their process ids."""
        return [self._process.pid, *map(int, self._answer())]

    def measure(self, reliability: str, count: int) -> tuple[float, float]:
        """Sends ``count`` images one by one to a reader with this reliability.

        Returns the median seconds from publish to callback (NaN if none arrived), and the share of images that arrived.

        Raises:
            RuntimeError: nothing arrived at a reliable reader, or a process has ended.
        """
        self._send_line(f"{reliability} {count}")
        median, arrived = map(float, self._answer())
        if reliability == RELIABLE and math.isnan(median):
            raise RuntimeError(f"No image arrived within {TIMEOUT_S[RELIABLE]:g} s.")
        return median, arrived

    def _answer(self) -> Sequence[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("The process that receives images has ended.")
        return line.split()


def topic(name: str, reliability: str) -> str:
    """Returns the topic on which a pair of processes sends images to the reader with a reliability."""
    return f"{name}/{reliability}"


def send(node: Node, name: str) -> None:
    """Publishes an image for each line of the standard input. The line names the reliability of the topic.

    The header of an image holds the image's number, and the time of the steady clock at which it is sent.

    Args:
        node: the node that publishes.
        name: the name of the pair of processes.
    """
    publishers = {each: node.create_publisher(Image, topic(name, each), QoSProfile(depth=5)) for each in TIMEOUT_S}
    data = array.array("B", bytes(3 * HEIGHT * WIDTH))
    message = Image(height=HEIGHT, width=WIDTH, encoding="rgb8", step=3 * WIDTH, data=data)
    for publisher in publishers.values():
        while not publisher.get_subscription_count():
            time.sleep(0.01)
    for number, line in enumerate(sys.stdin):
        message.header.frame_id = str(number)
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(time.monotonic_ns(), 10**9)
        publishers[line.strip()].publish(message)


class ImageReceiver:
    """Starts the sender and measures the images that arrive."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._arrivals: dict[str, float] = {}  # ages in seconds, by the image's number
        self._sent = 0
        self._subscriptions = [
            node.create_subscription(
                Image,
                topic(name, each),
                self._receive,
                QoSProfile(depth=5, reliability=ReliabilityPolicy[each.upper()]),
            )
            for each in TIMEOUT_S
        ]
        self.sender = subprocess.Popen(
            [sys.executable, *to_run(__name__), SEND, name], stdin=subprocess.PIPE, text=True, bufsize=1
        )

    def measure(self, reliability: str, count: int) -> tuple[float, float]:
        """Lets the sender send ``count`` images, one by one; see ``ImageHop.measure``."""
        assert self.sender.stdin is not None
        ages = []
        for _ in range(count):
            number = str(self._sent)
            self._sent += 1
            self.sender.stdin.write(f"{reliability}\n")
            end = time.monotonic() + TIMEOUT_S[reliability]
            while number not in self._arrivals and (left := end - time.monotonic()) > 0:
                rclpy.spin_once(self._node, timeout_sec=left)
            if number in self._arrivals:
                ages.append(self._arrivals[number])
        return (statistics.median(ages) if ages else math.nan), len(ages) / count

    def _receive(self, message: Image) -> None:
        stamp = message.header.stamp
        self._arrivals[message.header.frame_id] = (time.monotonic_ns() - stamp.sec * 10**9 - stamp.nanosec) / 1e9


def receive(node: Node, name: str) -> None:
    """Runs the receiver: starts the sender, and answers the lines of the standard input until it ends."""
    receiver = ImageReceiver(node, name)
    try:
        for reliability in TIMEOUT_S:
            receiver.measure(reliability, WARM_UP)
        print(receiver.sender.pid, flush=True)
        for line in sys.stdin:
            reliability, count = line.split()
            print(*receiver.measure(reliability, int(count)), flush=True)
    finally:
        receiver.sender.kill()
        receiver.sender.wait()


def main() -> int:
    """Runs the sender or the receiver, as the first argument says."""
    role, name = sys.argv[1:]
    rclpy.init()
    node = rclpy.create_node(f"{role}_{os.getpid()}")
    (send if role == SEND else receive)(node, name)
    node.destroy_node()
    rclpy.try_shutdown()
    return 0
