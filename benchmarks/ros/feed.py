"""The cameras of a benchmark, all in one process of their own. The benchmark can change what they send at any time.

    python benchmarks ros.feed FOLDER TOPIC...

publishes the pictures of a folder. A line "rate TOPIC HZ DELAY" on its standard input sets how many pictures per second
a topic gets. If it got none before, the first one is sent DELAY seconds later. A line "burst TOPIC COUNT" sends COUNT
pictures at once. The process ends at the end of its input.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

from benchmarks.common.child_process import to_run
from benchmarks.ros.line_process import LineProcess

DEPTH = 64  # a burst must not overwrite its own images


class Feed(LineProcess):
    """Starts and controls the process of the cameras, from the process of the benchmark.

    Args:
        folder: the folder of pictures. They are sent in the order of their names, again and again.
        topics: the topics of the cameras.
    """

    def __init__(self, folder: Path, topics: Sequence[str]) -> None:
        super().__init__([*to_run(__name__), str(folder), *topics])

    def __enter__(self) -> Feed:
        return self

    def rate(self, topic: str, hz: float, delay_s: float = 0.0) -> None:
        """Makes a camera send ``hz`` images per second to its topic from now on; 0: none.

        If it sent none before, it sends the first one after ``delay_s`` seconds.
        """
        self._send_line(f"rate {topic} {hz} {delay_s}")

    def burst(self, topic: str, count: int) -> None:
        """Sends ``count`` images to a topic at once."""
        self._send_line(f"burst {topic} {count}")


class Camera:
    """Publishes pictures to one topic on a thread of its own, again and again. They are (height, width, 3) in BGR."""

    def __init__(self, node: Node, topic: str, pictures: Sequence[np.ndarray]) -> None:
        self._node = node
        self._publisher = node.create_publisher(Image, topic, QoSProfile(depth=DEPTH))
        self._messages = self._endless([to_message(picture) for picture in pictures])
        self._changed = threading.Condition()
        self._rate = self._delay_s = 0.0
        threading.Thread(target=self._run, name=topic, daemon=True).start()

    def rate(self, hz: float, delay_s: float = 0.0) -> None:
        """Makes the camera send ``hz`` images per second from now on; 0: none.

        If it sent none before, it sends the first one after ``delay_s`` seconds.
        """
        with self._changed:
            self._rate, self._delay_s = hz, delay_s
            self._changed.notify()

    def burst(self, count: int) -> None:
        """Sends ``count`` images at once."""
        with self._changed:
            for _ in range(count):
                self._send()

    def _run(self) -> None:
        due = time.monotonic()
        with self._changed:
            while True:
                if self._rate == 0:
                    self._changed.wait()
                    due = time.monotonic() + self._delay_s
                elif (wait := due - time.monotonic()) > 0:
                    self._changed.wait(wait)
                else:
                    # a late image does not hurry the next ones
                    due = max(due + 1 / self._rate, time.monotonic())
                    self._send()

    def _send(self) -> None:
        while not self._publisher.get_subscription_count():  # images sent before a subscriber exists are lost
            time.sleep(0.01)
        message = next(self._messages)
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)

    @staticmethod
    def _endless(messages: Sequence[Image]) -> Iterator[Image]:
        while True:
            yield from messages


def to_message(picture: np.ndarray) -> Image:
    """Returns an image message with a picture, uint8 (height, width, 3) in BGR."""
    height, width = picture.shape[:2]
    message = Image(height=height, width=width, encoding="bgr8", step=3 * width)
    message.data.frombytes(picture.tobytes())
    return message


def main() -> int:
    """Runs the cameras. Follows the lines of the standard input until it ends."""
    folder, *topics = sys.argv[1:]
    pictures = [cv2.imread(str(path)) for path in sorted(Path(folder).iterdir())]
    rclpy.init()
    node = rclpy.create_node("feed")
    cameras = {topic: Camera(node, topic, pictures) for topic in topics}
    for line in sys.stdin:
        command, topic, *numbers = line.split()
        if command == "burst":
            cameras[topic].burst(int(numbers[0]))
        else:
            cameras[topic].rate(*map(float, numbers))
    for camera in cameras.values():
        camera.rate(0.0)
    node.destroy_node()
    rclpy.try_shutdown()
    return 0
