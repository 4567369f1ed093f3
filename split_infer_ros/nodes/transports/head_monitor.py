"""Tells a backbone which heads in other processes are alive, by the liveliness of their publishers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rclpy.duration import Duration
from rclpy.qos import LivelinessPolicy, QoSProfile

from split_infer_ros.msg import FeatureRelease
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.message_reader import read_messages

# A killed head counts as dead after this many seconds. Its subscription disappears only after 20 s.
SILENT_S = 2.0
RELEASE_QOS = QoSProfile(
    depth=64,  # the most slots that a pool can have
    liveliness=LivelinessPolicy.AUTOMATIC,
    liveliness_lease_duration=Duration(seconds=SILENT_S),
)


class HeadMonitor:
    """Subscribes to ``features/release``, on which every head publishes, and counts the dead heads.

    A thread of the monitor calls ``on_release`` and ``on_death``.

    Args:
        node: the backbone's node.
        on_release: called with each message that says that a head has finished a batch.
        on_death: called after a head died, with a time in seconds of the steady clock. Batches that were sent before
            that time went to the dead head.
        topic_prefix: text in front of the topic's name, such as ``front/``.
    """

    def __init__(
        self,
        node: ManagedNode[Any],
        on_release: Callable[[FeatureRelease], None],
        on_death: Callable[[float], None],
        topic_prefix: str = "",
    ) -> None:
        self._on_death = on_death
        self._silent = 0
        self._last_arrival = -math.inf
        # A thread of its own reads, because the executor may be busy for seconds with a change of parameters.
        topic = f"{topic_prefix}features/release"
        self._reader = read_messages(
            node, FeatureRelease, topic, on_release, RELEASE_QOS, name="releases", on_liveliness=self._update
        )

    def count_reached(self, publisher: Any) -> int:
        """Returns how many living heads subscribe to a publisher's topic."""
        return max(0, int(publisher.get_subscription_count()) - self._silent)

    def close(self) -> None:
        """Removes the subscription from the topic."""
        self._reader.close()

    def _update(self, change: Any) -> None:
        self._silent = change.not_alive_count
        now = time.monotonic()
        if change.not_alive_count_change > 0:  # the head did not leave in order, it fell silent
            self._on_death(self._last_arrival if change.alive_count else now)
        if change.alive_count_change > 0:
            self._last_arrival = now
