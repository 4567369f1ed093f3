"""The rival of the hop: the same features as a message through DDS, between two nodes of one process."""

from __future__ import annotations

import array
import statistics
import threading
import time

import rclpy
from _ros import Spinning
from std_msgs.msg import UInt8MultiArray

WARM_UP = 5
ANSWER_S = 5.0


def dds_hop(size: int, messages: int, period_s: float) -> float:
    """Median seconds from publish to callback of messages of ``size`` bytes; needs rclpy initialised.

    At its best: the payload is of the one type that rclpy copies as a whole, the callback is alone on its executor,
    and one message is under way at a time. One is sent every ``period_s``, as the pipeline's batches come, because
    a processor that was idle for a while wakes up slowly for either.

    Raises:
        RuntimeError: a message got lost.
    """
    sender, receiver = rclpy.create_node("features_sender"), rclpy.create_node("features_receiver")
    arrived = threading.Event()
    at = [0.0]

    def hear(message: UInt8MultiArray) -> None:
        at[0] = time.monotonic()
        arrived.set()

    publisher = sender.create_publisher(UInt8MultiArray, "features", 1)
    receiver.create_subscription(UInt8MultiArray, "features", hear, 1)
    spinning = Spinning(receiver)
    message = UInt8MultiArray(data=array.array("B", bytes(size)))
    hops = []
    try:
        while not publisher.get_subscription_count():
            time.sleep(0.01)
        for index in range(WARM_UP + messages):
            arrived.clear()
            published = time.monotonic()
            publisher.publish(message)
            if not arrived.wait(ANSWER_S):
                raise RuntimeError(f"A message of {size:,} bytes did not arrive.")
            if index >= WARM_UP:
                hops.append(at[0] - published)
            time.sleep(period_s)
    finally:
        spinning.stop()
        sender.destroy_node()
        receiver.destroy_node()
    return statistics.median(hops)
