"""``detections/image``: the source image with its boxes, drawn only while somebody subscribes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, Full, Queue

from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.drawing import draw_detections
from split_infer_ros.nodes.conversions import image_message
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.pipeline.frame import Origin


class Overlay:
    """Draws on a thread of its own, the newest result when it cannot follow.

    Args:
        node: that publishes.
        labels: the name of each label index.
        on_error: told of pictures that could not be drawn.
        topics: in front of the topic, such as ``front/``.

    Attributes:
        labels: may be replaced at any time.
    """

    def __init__(
        self, node: Node, labels: Sequence[str], on_error: Callable[[Exception], None], topics: str = ""
    ) -> None:
        self.labels = labels
        self._on_error = on_error
        self._publisher = IntraProcessPublisher(node, Image, f"{topics}detections/image", QoSProfile(depth=1))
        self._work: Queue[tuple[Pixels, Header, Detections] | None] = Queue(maxsize=1)
        self._thread = threading.Thread(target=self._loop, name="overlay", daemon=True)
        self._thread.start()

    def show(self, origin: Origin, detections: Detections) -> None:
        """A result came; draw it if anybody looks. Never waits."""
        if origin.pixels is not None and self._publisher.is_wanted:
            with suppress(Full):  # still drawing an earlier one: this one is not shown
                self._work.put_nowait((origin.pixels, origin.header, detections))

    def close(self) -> None:
        """End the thread and leave the topic."""
        with suppress(Empty):
            self._work.get_nowait()
        self._work.put(None)
        self._thread.join()
        self._publisher.destroy()

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            pixels, header, detections = work
            try:
                picture = draw_detections(pixels, detections, self.labels)
                self._publisher.publish(image_message(picture, "rgb8", header))
            except Exception as error:  # a picture is never worth the pipeline
                self._on_error(error)
