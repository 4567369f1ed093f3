"""The base of the usual nodes: a node as popular ROS 2 packages write it, with one callback that does everything.

The message becomes an array, the node's method ``find`` makes detections from it, and the node publishes them. The
queue holds one image, so that the node always works on the newest. ``find`` is warmed up before images come.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar

import cv2
import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

SWAPPED = {("rgb8", "bgr8"): cv2.COLOR_RGB2BGR, ("bgr8", "rgb8"): cv2.COLOR_BGR2RGB}

Found = Iterable[tuple[Iterable[float], str, float]]
"""For each detection: its box as left, top, width and height in pixels, its class, and its score."""


class UsualNode(Node, ABC):
    """A node that subscribes to ``image`` and publishes ``detections``. A subclass says how it finds them.

    Attributes:
        encoding: the encoding of the images that ``find`` takes: ``rgb8`` or ``bgr8``. The node swaps red and blue of
            images that come in the other one.
    """

    encoding: ClassVar[str]

    @abstractmethod
    def find(self, image: np.ndarray) -> Found:
        """Returns the detections in an image, uint8 (h, w, 3)."""

    def serve(self, *, warm_up: np.ndarray, times: int) -> None:
        """Calls ``find`` some times to warm up, then subscribes to images.

        Args:
            warm_up: the image for the warm-up, uint8 (h, w, 3).
            times: how often ``find`` is called with it.
        """
        for _ in range(times):
            list(self.find(warm_up))
        self._publisher = self.create_publisher(Detection2DArray, "detections", 10)
        newest = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        self.create_subscription(Image, "image", self._receive, newest)

    def _receive(self, message: Image) -> None:
        """Takes one image and publishes one array of detections."""
        image = np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)
        if message.encoding != self.encoding:
            image = cv2.cvtColor(image, SWAPPED[message.encoding, self.encoding])
        array = Detection2DArray(header=message.header)
        for box, label, score in self.find(image):
            detection = Detection2D(header=message.header)
            left, top, width, height = map(float, box)
            detection.bbox.center.position.x = left + width / 2
            detection.bbox.center.position.y = top + height / 2
            detection.bbox.size_x, detection.bbox.size_y = width, height
            hypothesis = ObjectHypothesisWithPose()
            hypothesis.hypothesis.class_id = label
            hypothesis.hypothesis.score = float(score)
            detection.results.append(hypothesis)
            array.detections.append(detection)
        self._publisher.publish(array)


def spin(make: Callable[[], UsualNode]) -> None:
    """Makes a node and runs it until a signal ends the process."""
    rclpy.init()
    node = make()
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
