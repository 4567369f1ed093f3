"""The rival of the hop from backbone to head: a message of equal size by DDS, between two nodes of one process."""

from __future__ import annotations

import array
import statistics
import threading
import time
from collections.abc import Sequence
from types import TracebackType

import rclpy
from std_msgs.msg import UInt8MultiArray

from benchmarks.ros.observer import SpinningExecutor

WARM_UP = 5
ANSWER_S = 5.0


class DdsHop:
    """Sends messages of several sizes and times them. rclpy must be initialised.

    The conditions are the best for DDS. The payload has the only type that rclpy copies as a whole. The callback is
    alone on its executor, and one message is in flight at a time. Messages are sent as often as the pipeline sends
    batches: after a longer pause, the processor would wake up slowly.

    Args:
        sizes: the sizes of the messages, in bytes.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sender, self._receiver = rclpy.create_node("features_sender"), rclpy.create_node("features_receiver")
        self._messages = {size: UInt8MultiArray(data=array.array("B", bytes(size))) for size in sizes}
        self._publisher = self._sender.create_publisher(UInt8MultiArray, "features", 1)
        self._receiver.create_subscription(UInt8MultiArray, "features", self._receive, 1)
        self._arrived = threading.Event()
        self._arrived_at = 0.0
        self._spinning = SpinningExecutor(self._receiver)

    def __enter__(self) -> DdsHop:
        while not self._publisher.get_subscription_count():
            time.sleep(0.01)
        for size in self._messages:
            self.median(size, WARM_UP, 0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spinning.stop()
        self._sender.destroy_node()
        self._receiver.destroy_node()

    def median(self, size: int, messages: int, period_s: float) -> float:
        """Sends ``messages`` messages of ``size`` bytes, one every ``period_s`` seconds.

        Returns the median seconds from publish to callback.

        Raises:
            RuntimeError: a message did not arrive within ``ANSWER_S`` seconds.
        """
        hops = []
        for _ in range(messages):
            self._arrived.clear()
            published = time.monotonic()
            self._publisher.publish(self._messages[size])
            if not self._arrived.wait(ANSWER_S):
                raise RuntimeError(f"A message of {size:,} bytes did not arrive.")
            hops.append(self._arrived_at - published)
            time.sleep(max(0.0, published + period_s - time.monotonic()))
        return statistics.median(hops)

    def _receive(self, message: UInt8MultiArray) -> None:
        self._arrived_at = time.monotonic()
        self._arrived.set()
