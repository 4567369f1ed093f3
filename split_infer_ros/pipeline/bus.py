"""Objects from publisher to subscriber within one process: the object itself, no copy, no polling.

The publisher's thread calls each subscriber; a subscriber that has work to do puts the object into a queue of
its own and returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any


class Bus:
    """Topics of one process; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receivers: dict[Hashable, tuple[Callable[[Any], None], ...]] = {}

    def subscribe(self, topic: Hashable, receive: Callable[[Any], None]) -> Callable[[], None]:
        """Have ``receive`` called with every object published on the topic; returns what ends it."""
        with self._lock:
            self._receivers[topic] = (*self._receivers.get(topic, ()), receive)

        def unsubscribe() -> None:
            with self._lock:
                left = list(self._receivers.get(topic, ()))
                if receive in left:
                    left.remove(receive)
                    self._receivers[topic] = tuple(left)

        return unsubscribe

    def has_receivers(self, topic: Hashable) -> bool:
        """True while anybody subscribes."""
        return bool(self._receivers.get(topic))

    def publish(self, topic: Hashable, message: Any) -> int:
        """Hand the object to all subscribers; returns how many there were."""
        receivers = self._receivers.get(topic, ())
        for receive in receivers:
            receive(message)
        return len(receivers)
