"""Which heads live, as a backbone in another process knows it: by the liveliness of what they publish."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rclpy.duration import Duration
from rclpy.qos import LivelinessPolicy, QoSProfile

from split_infer_ros.msg import FeatureRelease
from split_infer_ros.nodes.endpoints import listen
from split_infer_ros.nodes.managed import ManagedNode

# A head that was killed is known to be dead so many seconds later; that its subscription is gone, after 20 s.
SILENT_S = 2.0
RELEASE_QOS = QoSProfile(
    depth=64,  # as many as a pool can have slots
    liveliness=LivelinessPolicy.AUTOMATIC,
    liveliness_lease_duration=Duration(seconds=SILENT_S),
)


class Heads:
    """Hears ``features/release``, on which every head publishes.

    Args:
        node: the backbone's.
        receive: called with each release.
        on_death: called after a head died, with a time of the steady clock: what was sent before went to it.
    """

    def __init__(
        self, node: ManagedNode, receive: Callable[[FeatureRelease], None], on_death: Callable[[float], None]
    ) -> None:
        self._silent = 0
        self._node = node
        self._on_death = on_death
        self._last_arrival = -math.inf
        self._subscription = listen(
            node, FeatureRelease, "features/release", receive, RELEASE_QOS, on_liveliness=self._count
        )

    def reached_by(self, publisher: Any) -> int:
        """How many subscribe to a publisher, without the dead."""
        return max(0, int(publisher.get_subscription_count()) - self._silent)

    def close(self) -> None:
        """Leave the topic."""
        self._node.destroy_subscription(self._subscription)

    def _count(self, change: Any) -> None:
        self._silent = change.not_alive_count
        now = time.monotonic()
        if change.not_alive_count_change > 0:  # it did not leave, it fell silent
            self._on_death(self._last_arrival if change.alive_count else now)
        if change.alive_count_change > 0:
            self._last_arrival = now
