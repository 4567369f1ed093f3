"""Publishes ``detections/image``: source images with boxes. Boxes are drawn only while a subscriber exists."""

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
from split_infer_ros.server.frame import Origin


class Overlay:
    """Draws results on a thread of its own. While it draws one, one more result may wait; others are not drawn.

    Args:
        node: the node that publishes.
        on_error: called with the error when a result could not be drawn.
        topic_prefix: text in front of the topic's name, such as ``front/``.

    Attributes:
        labels: the name of each label, by index. Any thread may replace it at any time.
    """

    def __init__(self, node: Node, on_error: Callable[[Exception], None], topic_prefix: str = "") -> None:
        self.labels: Sequence[str] = ()
        self._on_error = on_error
        self._publisher = IntraProcessPublisher(node, Image, f"{topic_prefix}detections/image", QoSProfile(depth=1))
        self._queue: Queue[tuple[Pixels, Header, Detections] | None] = Queue(maxsize=1)
        self._thread = threading.Thread(target=self._draw_all, name="overlay", daemon=True)

    def start(self) -> None:
        """Starts the thread that draws."""
        self._thread.start()

    @property
    def has_subscribers(self) -> bool:
        """True while somebody subscribes to the images."""
        return self._publisher.has_subscribers

    def submit(self, origin: Origin, detections: Detections) -> None:
        """Queues a result to be drawn, if a subscriber exists and no other result waits. Never blocks."""
        if origin.pixels is not None and self.has_subscribers:
            with suppress(Full):  # an earlier result is still waiting
                self._queue.put_nowait((origin.pixels, origin.header, detections))

    def close(self) -> None:
        """Ends the thread and removes the publisher from the topic."""
        with suppress(Empty):
            self._queue.get_nowait()
        self._queue.put(None)
        self._thread.join()
        self._publisher.destroy()

    def _draw_all(self) -> None:
        while (result := self._queue.get()) is not None:
            pixels, header, detections = result
            try:
                picture = draw_detections(pixels, detections, self.labels)
                self._publisher.publish(image_message(picture, "rgb8", header))
            except Exception as error:  # a picture must not stop the pipeline
                self._on_error(error)
