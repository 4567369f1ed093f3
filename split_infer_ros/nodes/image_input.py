"""The subscription to one camera's images."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError, error_sentence
from split_infer_ros.images.compressed import read_compressed
from split_infer_ros.images.encodings import Pixels, read_message
from split_infer_ros.nodes.cv_bridge_encodings import find_encoding
from split_infer_ros.nodes.enable_service import EnableService
from split_infer_ros.nodes.endpoints import create_steady_timer
from split_infer_ros.nodes.intra_process import IntraProcessSubscription
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.parameters.images import ImageParameters, ImageReliability, ImageTransport
from split_infer_ros.server.admission import Intake
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.rate_limiter import RateLimiter

ROOM_TIMEOUT_S = 0.5
TYPES_PERIOD_S = 1.0  # how often the types of a topic's publishers are checked
MIDDLEWARE = DropReason.MIDDLEWARE.value
COMPRESSED = "/compressed"  # compressed_image_transport ends the names of its topics with this
_TYPES: dict[type, str] = {Image: "sensor_msgs/msg/Image", CompressedImage: "sensor_msgs/msg/CompressedImage"}


class ImageInput:
    """Subscribes to one topic and gives each image to an intake, which serves it or drops it for a named reason.

    A thread of its own reads the images of other processes. While the intake is full (drop policy ``block``), that
    thread leaves the images with the middleware. A camera of this process waits.

    The input reads raw or compressed images, whichever the topic's publishers send. If they send neither, the log says
    which types they send, and which it takes.

    Args:
        node: the node that subscribes. Its parameters ``image_*`` and ``max_image_pixels`` apply.
        topic: the topic of images. With ``image_transport: compressed``, it is ``TOPIC/compressed``.
        intake: takes the frames.
        limiter: limits the frames a second. Frames above the limit are dropped as ``rate_limited``.
        enable: the service ``~/enable``. While it is off, frames are dropped as ``paused``.
        is_listened_to: says whether results reach somebody. If not, a ``lazy`` node drops frames as ``nobody_listens``.

    Attributes:
        mismatch: a sentence for the user if the topic's publishers send no images; else empty.
    """

    def __init__(
        self,
        node: ManagedNode[Any],
        topic: str,
        *,
        intake: Intake,
        limiter: RateLimiter,
        enable: EnableService,
        is_listened_to: Callable[[], bool],
    ) -> None:
        self._node = node
        self._topic = topic
        self._intake = intake
        self._limiter = limiter
        self._enable = enable
        self._is_listened_to = is_listened_to
        values: ImageParameters = node.values
        self._max_pixels = values.max_image_pixels
        self._qos = QoSProfile(depth=values.image_depth)
        if values.image_reliability is ImageReliability.BEST_EFFORT:
            self._qos.reliability = ReliabilityPolicy.BEST_EFFORT
        is_compressed = values.image_transport is ImageTransport.COMPRESSED
        names_compressed = topic.endswith(COMPRESSED)
        self._source = f"{topic}{COMPRESSED}" if is_compressed and not names_compressed else topic
        self.mismatch = ""
        self._has_lost = False
        self._subscribe(CompressedImage if is_compressed or names_compressed else Image)
        self._timer = create_steady_timer(node, TYPES_PERIOD_S, self._check_types)

    def close(self) -> None:
        """Removes the subscription from the topic."""
        self._node.destroy_timer(self._timer)
        self._subscription.destroy()

    def _subscribe(self, message: type) -> None:
        self._message = message
        self._subscription = IntraProcessSubscription(
            self._node,
            message=message,
            topic=self._source,
            qos=self._qos,
            receive=self._receive_local,
            receive_remote=self._receive,
            on_lost=self._count_lost,
            wait_for_room=self._intake.wait_for_room,
        )

    def _count_lost(self, count: int) -> None:
        self._intake.missed(count, DropReason.MIDDLEWARE)
        if not self._has_lost:
            self._has_lost = True
            self._node.get_logger().warning(
                f"{self._source}: images get lost on their way, and are counted as dropped for {MIDDLEWARE}. Give the "
                "camera's process the profile config/fastdds.xml too. Images of more than 16 MiB, such as 4K ones, go "
                "in pieces: set image_reliability to reliable on both sides."
            )

    def _check_types(self) -> None:
        """Subscribes anew if the publishers send images of the other type. Warns if they send no images."""
        name = self._node.resolve_topic_name(self._source)
        found = frozenset(info.topic_type for info in self._node.get_publishers_info_by_topic(name))
        other = next((message for message, kind in _TYPES.items() if kind in found), None)
        before, self.mismatch = self.mismatch, ""
        if not found or _TYPES[self._message] in found:
            return
        if other is not None:
            self._node.get_logger().info(f"{name} has the type {_TYPES[other]}, so it is read as such.")
            self._subscription.destroy()
            self._subscribe(other)
            return
        self.mismatch = (
            f"{name} has the type {', '.join(sorted(found))}, and images are {' or '.join(_TYPES.values())}: none will "
            "come from it. Name the topic of a camera."
        )
        if self.mismatch != before:
            self._node.get_logger().warning(self.mismatch)

    def _receive_local(self, message: Any) -> None:
        """Receives an image of a camera in this process, on that camera's own thread, which may be made to wait."""
        while self._node.is_active and not self._intake.wait_for_room(ROOM_TIMEOUT_S):
            pass
        self._receive(message)

    def _receive(self, message: Any) -> None:
        now = time.monotonic()
        try:
            if not self._enable.enabled:
                raise ImageError(DropReason.PAUSED, "Frames are dropped while ~/enable is off.")
            if self._node.values.lazy and not self._is_listened_to():
                raise ImageError(DropReason.NOBODY_LISTENS, f"Nobody subscribes to results of {self._topic}.")
            if not self._limiter.admits(self._topic, now):
                raise ImageError(DropReason.RATE_LIMITED, f"{self._topic} is faster than max_rate_hz.")
            pixels = self._read_any(message)
        except ImageError as error:
            self._intake.refuse(error, now)
            if not error.reason.intended:
                self._node.warn(error)
            return
        age_s = self._age_s(message.header.stamp)
        self._intake.submit(
            pixels, Origin(message.header, self._topic, pixels.height, pixels.width, pixels, age_s), now
        )

    def _age_s(self, stamp: Any) -> float:
        """Returns an image's age by its stamp, in seconds; NaN if it has no stamp."""
        taken = stamp.sec * 10**9 + stamp.nanosec
        return (self._node.get_clock().now().nanoseconds - taken) / 1e9 if taken else math.nan

    def _read_any(self, message: Any) -> Pixels:
        """Reads an image. Raises ImageError for any failure, so that the frame is counted."""
        try:
            if isinstance(message, CompressedImage):
                return read_compressed(message.data, message.format, self._max_pixels)
            return read_message(message, self._max_pixels, find_other=find_encoding)
        except ImageError:
            raise
        except Exception as error:
            raise ImageError(
                DropReason.CORRUPT_IMAGE, f"An image on {self._topic} cannot be read ({error_sentence(error)})."
            ) from error
