"""The subscription to one topic of frames: images of a camera, or point clouds of a LIDAR."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rclpy.qos import QoSProfile, ReliabilityPolicy

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import FrameError, error_sentence
from split_infer_ros.nodes.enable_service import EnableService
from split_infer_ros.nodes.endpoints import create_steady_timer
from split_infer_ros.nodes.intra_process import IntraProcessSubscription
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.parameters.images import ImageParameters, ImageReliability
from split_infer_ros.server.admission import Intake
from split_infer_ros.server.frame import Origin, Payload
from split_infer_ros.server.rate_limiter import RateLimiter

ROOM_TIMEOUT_S = 0.5
TYPES_PERIOD_S = 1.0  # how often the types of a topic's publishers are checked
MIDDLEWARE = DropReason.MIDDLEWARE.value


class FrameInput(ABC):
    """Subscribes to one topic and gives each frame to an intake, which serves it or drops it for a named reason.

    A thread of its own reads the frames of other processes. While the intake is full (drop policy ``block``), that
    thread leaves the frames with the middleware. A source in this process waits.

    If the topic's publishers send messages of another type that is read, the input subscribes anew. If they send none,
    the log says which types they send, and which it takes.

    Args:
        node: the node that subscribes. Its parameters ``image_*`` apply.
        topic: the topic.
        message: the type of message to begin with.
        intake: takes the frames.
        limiter: limits the frames a second. Frames above the limit are dropped as ``rate_limited``.
        enable: the service ``~/enable``. While it is off, frames are dropped as ``paused``.
        is_listened_to: says whether results reach somebody. If not, a ``lazy`` node drops frames as ``nobody_listens``.

    Attributes:
        TYPES: the types of messages that are read, with their names.
        NOUN: what the frames are, in words.
        SOURCE: what sends them, in words.
        UNREADABLE: the drop reason of a message that cannot be read for an unforeseen reason.
        mismatch: a sentence for the user if the topic's publishers send no such messages; else empty.
    """

    TYPES: ClassVar[Mapping[type, str]]
    NOUN: ClassVar[str]
    SOURCE: ClassVar[str]
    UNREADABLE: ClassVar[DropReason]

    def __init__(
        self,
        node: ManagedNode[Any],
        topic: str,
        *,
        message: type,
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
        self._qos = QoSProfile(depth=values.image_depth)
        if values.image_reliability is ImageReliability.BEST_EFFORT:
            self._qos.reliability = ReliabilityPolicy.BEST_EFFORT
        self.mismatch = ""
        self._has_lost = False
        self._subscribe(message)
        self._timer = create_steady_timer(node, TYPES_PERIOD_S, self._check_types)

    def close(self) -> None:
        """Removes the subscription from the topic."""
        self._node.destroy_timer(self._timer)
        self._subscription.destroy()

    @abstractmethod
    def read(self, message: Any) -> Payload:
        """Returns what a message holds.

        Raises:
            FrameError: the message cannot be read. It carries the drop reason. Any other error drops the frame as
                ``UNREADABLE``.
        """

    @abstractmethod
    def origin(self, header: Any, payload: Payload, age_s: float) -> Origin:
        """Returns what the result needs of a frame, which arrived ``age_s`` seconds after its stamp."""

    def _subscribe(self, message: type) -> None:
        self._message = message
        self._subscription = IntraProcessSubscription(
            self._node,
            message=message,
            topic=self._topic,
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
                f"{self._topic}: {self.NOUN} get lost on their way, and are counted as dropped for {MIDDLEWARE}. Give "
                f"the {self.SOURCE}'s process the profile config/fastdds.xml too. {self.NOUN.capitalize()} of more "
                "than 16 MiB, such as 4K images, go in pieces: set image_reliability to reliable on both sides."
            )

    def _check_types(self) -> None:
        """Subscribes anew if the publishers send frames of another type. Warns if they send no frames."""
        name = self._node.resolve_topic_name(self._topic)
        found = frozenset(info.topic_type for info in self._node.get_publishers_info_by_topic(name))
        other = next((message for message, kind in self.TYPES.items() if kind in found), None)
        before, self.mismatch = self.mismatch, ""
        if not found or self.TYPES[self._message] in found:
            return
        if other is not None:
            self._node.get_logger().info(f"{name} has the type {self.TYPES[other]}, so it is read as such.")
            self._subscription.destroy()
            self._subscribe(other)
            return
        self.mismatch = (
            f"{name} has the type {', '.join(sorted(found))}, and {self.NOUN} are {' or '.join(self.TYPES.values())}: "
            f"none will come from it. Name the topic of a {self.SOURCE}."
        )
        if self.mismatch != before:
            self._node.get_logger().warning(self.mismatch)

    def _receive_local(self, message: Any) -> None:
        """Receives a frame of a source in this process, on that source's own thread, which may be made to wait."""
        while self._node.is_active and not self._intake.wait_for_room(ROOM_TIMEOUT_S):
            pass
        self._receive(message)

    def _receive(self, message: Any) -> None:
        now = time.monotonic()
        try:
            if not self._enable.enabled:
                raise FrameError(DropReason.PAUSED, "Frames are dropped while ~/enable is off.")
            if self._node.values.lazy and not self._is_listened_to():
                raise FrameError(DropReason.NOBODY_LISTENS, f"Nobody subscribes to results of {self._topic}.")
            if not self._limiter.admits(self._topic, now):
                raise FrameError(DropReason.RATE_LIMITED, f"{self._topic} is faster than max_rate_hz.")
            payload = self._read_any(message)
        except FrameError as error:
            self._intake.refuse(error, now)
            if not error.reason.intended:
                self._node.warn(error)
            return
        self._intake.submit(payload, self.origin(message.header, payload, self._age_s(message.header.stamp)), now)

    def _age_s(self, stamp: Any) -> float:
        """Returns a frame's age by its stamp, in seconds; NaN if it has no stamp."""
        taken = stamp.sec * 10**9 + stamp.nanosec
        return (self._node.get_clock().now().nanoseconds - taken) / 1e9 if taken else math.nan

    def _read_any(self, message: Any) -> Payload:
        """Reads a frame. Raises FrameError for any failure, so that the frame is counted."""
        try:
            payload = self.read(message)
            self._intake.check(payload)
            return payload
        except FrameError:
            raise
        except Exception as error:
            raise FrameError(
                self.UNREADABLE, f"A message on {self._topic} cannot be read ({error_sentence(error)})."
            ) from error
