"""Node ``camera``: publishes the images of a source and, for drawn scenes, the objects in them."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import Header, String
from vision_msgs.msg import Detection2DArray

from split_infer_ros.errors import SourceError, error_sentence
from split_infer_ros.nodes.conversions import image_message, truth_message
from split_infer_ros.nodes.cv_bridge_encodings import find_encoding
from split_infer_ros.nodes.endpoints import LATCHED, create_publisher
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.parameters.table import NodeParameters
from split_infer_ros.nodes.process import run
from split_infer_ros.setting import setting
from split_infer_ros.sources import Picture, Source, open_source
from split_infer_ros.sources.scenes import LABELS

NO_SOURCE = "none"
ENDED_TOPIC = "source_ended"
MAX_NAMED_FILES = 100  # the log names this many unreadable images one by one


@dataclass(frozen=True)
class CameraParameters(NodeParameters):
    """The parameters of the node ``camera``."""

    PURPOSE: ClassVar[str] = "The source"

    source: str = setting(
        "shapes",
        "Where images come from: shapes (drawn scenes with known objects), folder:PATH, video:PATH, bag:PATH[:TOPIC] "
        "(a ROS 2 bag or an .mcap file), v4l2:DEVICE, or none.",
        read_only=True,
    )
    rate_hz: float = setting(
        15.0, "Images per second. 0: as fast as the source provides them.", minimum=0.0, maximum=1000.0
    )
    seed: int = setting(0, "Seed of the drawn scenes.", minimum=0, maximum=2**31 - 1, read_only=True)
    width: int = setting(
        640, "Width of drawn scenes, or to ask of a V4L2 camera, in pixels.", minimum=16, maximum=7680, read_only=True
    )
    height: int = setting(
        480, "Height of drawn scenes, or to ask of a V4L2 camera, in pixels.", minimum=16, maximum=4320, read_only=True
    )
    loop: bool = setting(True, "Whether a folder, video or bag starts again at its end.", read_only=True)
    frame_id: str = setting("camera", "The frame_id of every header.", read_only=True)


class CameraNode(ManagedNode[CameraParameters]):
    """Publishes ``image`` and, for drawn scenes, the known objects on ``truth``.

    The latched topic ``source_ended`` is empty at first. Once the source has ended, it names the source.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("camera", CameraParameters, **node_arguments)
        self._images: IntraProcessPublisher | None = None
        self._truth: IntraProcessPublisher | None = None
        self._ended: Any = None  # the publisher of source_ended, while the node is configured
        self._source: Source | None = None
        self._named_files: set[str] = set()
        self._stopping = threading.Event()
        # A signal may interrupt the start of the thread. Then nobody joins the thread, and it must not publish.
        self._publishing = threading.Lock()
        self._thread: threading.Thread | None = None

    def configure(self) -> None:
        values = self.values
        self._images = IntraProcessPublisher(self, Image, "image", QoSProfile(depth=5))
        self.add_cleanup(self._images.destroy)
        self._truth = IntraProcessPublisher(self, Detection2DArray, "truth", QoSProfile(depth=50))
        self.add_cleanup(self._truth.destroy)
        self._ended = create_publisher(self, String, ENDED_TOPIC, LATCHED)
        self.add_cleanup(lambda: self.destroy_publisher(self._ended))
        self._named_files = set()
        self._source = None
        if values.source != NO_SOURCE:
            self._source = open_source(
                values.source,
                seed=values.seed,
                width=values.width,
                height=values.height,
                loop=values.loop,
                warn=self._name_unreadable,
                find_encoding=find_encoding,
            )
            self.add_cleanup(self._source.close)
        self._thread = None
        self.add_cleanup(self.deactivate)  # a signal may come before this node is active

    def activate(self) -> None:
        self._stopping.clear()
        self._ended.publish(String())
        self._thread = threading.Thread(target=self._capture, name="camera", daemon=True)
        self._thread.start()

    def deactivate(self) -> None:
        with self._publishing:
            self._stopping.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _capture(self) -> None:
        due = time.monotonic()
        try:
            for picture in self._source or ():
                if self._stopping.wait(max(0.0, due - time.monotonic())):
                    return
                rate = self.values.rate_hz
                # a late picture does not hurry the next ones
                due = max(due + 1 / rate, time.monotonic()) if rate else 0.0
                with self._publishing:
                    if self._stopping.is_set():
                        return
                    self._publish(picture)
        except Exception as error:  # a source or a message may raise anything; nothing else would report it
            self.get_logger().error(error_sentence(error))
        with self._publishing:
            if self._source is not None and not self._stopping.is_set():
                self.get_logger().info(f"{self.values.source} has ended.")
                self._ended.publish(String(data=self.values.source))

    def _name_unreadable(self, sentence: str) -> None:
        """Logs an unreadable image once. After ``MAX_NAMED_FILES`` images it logs at most one every few seconds."""
        if sentence in self._named_files:
            return
        if len(self._named_files) == MAX_NAMED_FILES:
            self.warn(SourceError(sentence))
            return
        self._named_files.add(sentence)
        self.get_logger().warning(sentence)

    def _publish(self, picture: Picture) -> None:
        assert self._images is not None
        assert self._truth is not None
        header = Header(stamp=self.get_clock().now().to_msg(), frame_id=picture.frame_id or self.values.frame_id)
        if picture.stamp is not None:  # a recording keeps its stamps, so that its results can be compared
            header.stamp.sec, header.stamp.nanosec = picture.stamp
        if picture.truth is not None and self._truth.has_subscribers:
            scene = picture.truth
            self._truth.publish(truth_message(scene.boxes, scene.labels, LABELS, header))
        self._images.publish(image_message(picture.image, picture.encoding, header))


def main() -> int:
    """Runs a process with this node alone. Returns the exit code."""
    return run([CameraNode])


if __name__ == "__main__":
    sys.exit(main())
