"""1080p images from one process to another: how long they take, and how many arrive.

    python _image_hop.py COUNT RELIABILITY

prints the median seconds from publish to callback, and the part of the images that arrived. Which Fast DDS profile
is used says the environment, as for any node.
"""

from __future__ import annotations

import array
import subprocess
import sys
import time

import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

HEIGHT, WIDTH = 1080, 1920
PERIOD_S = 0.1
WARM_UP = 5
PATIENCE_S = 2.0
START_S = 60.0
SEND = "send"


def send(node: Node, count: int) -> None:
    """Publish images that bear the steady clock's time."""
    publisher = node.create_publisher(Image, "image", QoSProfile(depth=5))
    data = array.array("B", bytes(3 * HEIGHT * WIDTH))
    message = Image(height=HEIGHT, width=WIDTH, encoding="rgb8", step=3 * WIDTH, data=data)
    while not publisher.get_subscription_count():
        time.sleep(0.05)
    for _ in range(WARM_UP + count):
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(time.monotonic_ns(), 10**9)
        publisher.publish(message)
        time.sleep(PERIOD_S)


def hear(node: Node, count: int, reliability: str) -> tuple[float, float]:
    """The median seconds (NaN if nothing came) and the part that arrived, of images sent by another process."""
    ages: list[float] = []

    def receive(message: Image) -> None:
        stamp = message.header.stamp
        ages.append((time.monotonic_ns() - stamp.sec * 10**9 - stamp.nanosec) / 1e9)

    qos = QoSProfile(depth=5, reliability=ReliabilityPolicy[reliability.upper()])
    node.create_subscription(Image, "image", receive, qos)
    sender = subprocess.Popen([sys.executable, __file__, str(count), SEND])
    try:
        end = time.monotonic() + START_S + (WARM_UP + count) * PERIOD_S
        while sender.poll() is None and time.monotonic() < end:
            rclpy.spin_once(node, timeout_sec=0.1)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            rclpy.spin_once(node, timeout_sec=0.1)
    finally:
        sender.kill()
        sender.wait()
    arrived = len(ages) / (WARM_UP + count)
    return (float(np.median(ages[WARM_UP:])) if len(ages) > WARM_UP else float("nan")), arrived


def main() -> int:
    """Run one of the two processes."""
    count, role = int(sys.argv[1]), sys.argv[2]
    rclpy.init()
    node = rclpy.create_node("sender" if role == SEND else "receiver")
    if role == SEND:
        send(node, count)
    else:
        print(*hear(node, count, role))
    node.destroy_node()
    rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
