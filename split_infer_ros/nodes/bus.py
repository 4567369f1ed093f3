"""A message bus within one process: subscribers get the published object itself, without a copy or polling."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any


class Bus:
    """The topics of one process. Any thread may use it.

    The publisher's thread calls each subscriber. A subscriber with work to do puts the message into its own queue
    and returns.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: dict[Hashable, tuple[Callable[[Any], None], ...]] = {}

    def subscribe(self, topic: Hashable, receive: Callable[[Any], None]) -> Callable[[], None]:
        """Calls ``receive`` with every message on the topic from now on; returns a function that ends this."""
        with self._lock:
            self._subscribers[topic] = (*self._subscribers.get(topic, ()), receive)

        def unsubscribe() -> None:
            with self._lock:
                remaining = list(self._subscribers.get(topic, ()))
                if receive in remaining:
                    remaining.remove(receive)
                    self._subscribers[topic] = tuple(remaining)

        return unsubscribe

    def has_subscribers(self, topic: Hashable) -> bool:
        """Returns whether the topic has a subscriber."""
        return bool(self._subscribers.get(topic))

    def publish(self, topic: Hashable, message: Any) -> int:
        """Hands the message to all subscribers; returns how many there were."""
        subscribers = self._subscribers.get(topic, ())
        for receive in subscribers:
            receive(message)
        return len(subscribers)
