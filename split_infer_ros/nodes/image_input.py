"""One camera's images on their way in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError
from split_infer_ros.images.compressed import read_compressed
from split_infer_ros.images.encodings import Pixels, read_pixels
from split_infer_ros.nodes.enable import Enable
from split_infer_ros.nodes.intra_process import IntraProcessSubscription
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.pipeline.rate_limiter import RateLimiter

RAW, COMPRESSED = "raw", "compressed"
ROOM_S = 0.5


class RoomGroup(MutuallyExclusiveCallbackGroup):
    """Leaves messages with the middleware while there is no room for them (drop_policy ``block``)."""

    def __init__(self, has_room: Callable[[], bool]) -> None:
        super().__init__()
        self._has_room = has_room

    def can_execute(self, entity: Any) -> bool:
        return self._has_room() and super().can_execute(entity)


class FrameSink(Protocol):
    """Who takes a camera's frames."""

    @property
    def full(self) -> bool:
        """True while senders are asked to wait."""

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait while ``full``; True once there is room."""

    def submit(self, pixels: Pixels, origin: Origin, now: float) -> None:
        """A frame came in."""

    def refuse(self, error: ImageError, now: float) -> None:
        """A frame came in that is not to be had."""

    def missed(self, count: int, reason: DropReason) -> None:
        """Frames were sent and never reached us."""


class ImageInput:
    """Subscribes to one topic; each image is given to whoever takes it, or dropped there by name.

    Args:
        node: whose parameters ``image_*`` and ``max_image_pixels`` apply.
        topic: of the raw images; compressed ones are expected beside it, on ``TOPIC/compressed``.
        taker: of the frames.
        limiter: how many a second it takes.
        enable: whose being off has frames dropped as ``paused``.
    """

    def __init__(
        self,
        node: ManagedNode,
        topic: str,
        sink: FrameSink,
        limiter: RateLimiter,
        enable: Enable,
    ) -> None:
        self._node = node
        self._topic = topic
        self._sink = sink
        self._limiter = limiter
        self._enable = enable
        values = node.values
        self._max_pixels = values.max_image_pixels
        qos = QoSProfile(depth=values.image_depth)
        if values.image_reliability == "best_effort":
            qos.reliability = ReliabilityPolicy.BEST_EFFORT
        compressed = values.image_transport == COMPRESSED
        self._read: Callable[[Any], Pixels] = self._read_compressed if compressed else self._read_raw
        self._subscription = IntraProcessSubscription(
            node,
            CompressedImage if compressed else Image,
            f"{topic}/compressed" if compressed else topic,
            qos,
            self._receive_here,
            from_outside=self._receive,
            on_gap=lambda count: sink.missed(count, DropReason.MIDDLEWARE),
            callback_group=RoomGroup(lambda: not sink.full),
        )

    def close(self) -> None:
        """Leave the topic."""
        self._subscription.destroy()

    def _receive_here(self, message: Any) -> None:
        """An image of a camera in this process, on that camera's own thread, which may be made to wait."""
        while self._node.is_active and not self._sink.wait_for_room(ROOM_S):
            pass
        self._receive(message)

    def _receive(self, message: Any) -> None:
        now = time.monotonic()
        try:
            if not self._enable.is_on:
                raise ImageError(DropReason.PAUSED, "Frames are dropped while ~/enable is off.")
            if not self._limiter.admits(self._topic, now):
                raise ImageError(DropReason.RATE_LIMITED, f"{self._topic} is faster than max_rate_hz.")
            pixels = self._read(message)
        except ImageError as error:
            self._sink.refuse(error, now)
            if not error.reason.intended:
                self._node.warn(error)
            return
        self._sink.submit(pixels, Origin(message.header, self._topic, pixels.height, pixels.width, pixels), now)

    def _read_raw(self, image: Image) -> Pixels:
        return read_pixels(
            image.data,
            height=image.height,
            width=image.width,
            encoding=image.encoding,
            step=image.step,
            is_bigendian=bool(image.is_bigendian),
            max_pixels=self._max_pixels,
        )

    def _read_compressed(self, image: CompressedImage) -> Pixels:
        return read_compressed(image.data, image.format, self._max_pixels)
