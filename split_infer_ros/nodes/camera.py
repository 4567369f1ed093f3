"""Node ``camera``: publishes pictures of a source; of drawn scenes also the truth."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from torch import from_numpy
from vision_msgs.msg import Detection2DArray

from split_infer_ros.errors import SourceError
from split_infer_ros.models.shapes import LABELS
from split_infer_ros.nodes.conversions import image_message, truth_message
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.parameters.table import NodeParameters, parameter
from split_infer_ros.nodes.process import run
from split_infer_ros.sources import Picture, Source, open_source

NO_SOURCE = "none"
MOST_NAMED = 100  # unreadable images


@dataclass(frozen=True)
class CameraParameters(NodeParameters):
    """What the camera can be told."""

    source: str = parameter(
        "shapes",
        "shapes (drawn scenes with known truth), folder:PATH, video:PATH, bag:PATH[:TOPIC] (a ROS 2 bag or an .mcap "
        "file), v4l2:DEVICE, or none to stay silent.",
        read_only=True,
    )
    rate_hz: float = parameter(15.0, "Pictures a second; 0 as fast as they can be had.", at_least=0.0, at_most=1000.0)
    seed: int = parameter(0, "Which series of drawn scenes.", at_least=0, at_most=2**31 - 1, read_only=True)
    width: int = parameter(640, "Of drawn scenes, pixels.", at_least=16, at_most=7680, read_only=True)
    height: int = parameter(480, "Of drawn scenes, pixels.", at_least=16, at_most=4320, read_only=True)
    loop: bool = parameter(True, "Begin a folder, video or bag again at its end.", read_only=True)
    frame_id: str = parameter("camera", "Goes into every header.", read_only=True)


class CameraNode(ManagedNode):
    """Publishes ``image`` and, of drawn scenes, ``truth``."""

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("camera", CameraParameters, **node_arguments)

    def set_up(self) -> None:
        values = self.values
        self._images = IntraProcessPublisher(self, Image, "image", QoSProfile(depth=5))
        self.on_tear_down(self._images.destroy)
        self._truth = IntraProcessPublisher(self, Detection2DArray, "truth", QoSProfile(depth=50))
        self.on_tear_down(self._truth.destroy)
        self._passed_over: set[str] = set()
        self._source: Source | None = None
        if values.source != NO_SOURCE:
            self._source = open_source(
                values.source,
                seed=values.seed,
                width=values.width,
                height=values.height,
                loop=values.loop,
                warn=self._pass_over,
            )
            self.on_tear_down(self._source.close)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.on_tear_down(self.end)  # should a signal come before this node is active

    def begin(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._capture, name="camera", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _capture(self) -> None:
        due = time.monotonic()
        try:
            for picture in self._source or ():
                if self._ended.wait(max(0.0, due - time.monotonic())):
                    return
                rate = self.values.rate_hz
                # a picture that came late does not hurry the next ones
                due = max(due + 1 / rate, time.monotonic()) if rate else 0.0
                self._publish(picture)
        except SourceError as error:
            self.warn(error)
        if self._source is not None:
            self.get_logger().info(f"{self.values.source} has ended.")

    def _pass_over(self, sentence: str) -> None:
        """Name an unreadable image, once; of very many, one in a few seconds."""
        if sentence in self._passed_over:
            return
        if len(self._passed_over) == MOST_NAMED:
            self.warn(SourceError(sentence))
            return
        self._passed_over.add(sentence)
        self.get_logger().warning(sentence)

    def _publish(self, picture: Picture) -> None:
        header = Header(stamp=self.get_clock().now().to_msg(), frame_id=picture.frame_id or self.values.frame_id)
        if picture.stamp is not None:  # recorded: whoever compares with other records needs the original
            header.stamp.sec, header.stamp.nanosec = picture.stamp
        if picture.truth is not None and self._truth.is_wanted:
            scene = picture.truth
            self._truth.publish(truth_message(from_numpy(scene.boxes), from_numpy(scene.labels), LABELS, header))
        self._images.publish(image_message(picture.image, picture.encoding, header))


def main() -> int:
    """Run this node alone."""
    return run([CameraNode])


if __name__ == "__main__":
    sys.exit(main())
