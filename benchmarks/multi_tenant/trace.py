"""Makes traces of requests, and lets their requests arrive by the clock."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence

from benchmarks.multi_tenant.log import Log
from split_infer_ros.server.schedule.request import Request

SHORTEST_SLEEP_S = 2e-4
CAMERAS = 8  # cameras of each model


def poisson_trace(models: Sequence[str], count: int, per_second: float, seed: int = 0) -> list[Request]:
    """Returns equally many requests of each model, in random order. The last model gets the remainder.

    The requests arrive as a Poisson process with ``per_second`` requests a second. Each model has ``CAMERAS`` tenants,
    whose frames come in turn. Equal arguments give the same trace.
    """
    generator = random.Random(seed)
    names = [models[min(index * len(models) // count, len(models) - 1)] for index in range(count)]
    generator.shuffle(names)
    now, trace = 0.0, []
    for number, model in enumerate(names):
        now += generator.expovariate(per_second)
        trace.append(Request(number, f"{model} {number % CAMERAS}", model, arrival_s=now))
    return trace


def at_once(models: Sequence[str]) -> list[Request]:
    """Returns one request of each model. All of them arrive at time 0 (Fig. 6)."""
    return [Request(number, model, model, arrival_s=0.0) for number, model in enumerate(models)]


class Arrivals:
    """Lets the requests of a trace arrive as time passes. The clock starts when the object is made.

    Args:
        trace: the requests in the order of arrival.
        log: records the arrivals.
    """

    def __init__(self, trace: Sequence[Request], log: Log) -> None:
        self._coming = deque(trace)
        self._log = log
        self._begin = time.perf_counter()

    def now(self) -> float:
        """Returns the seconds since this object was made."""
        return time.perf_counter() - self._begin

    def due(self) -> list[Request]:
        """Returns the requests that arrived since the last call."""
        now, arrived = self.now(), []
        while self._coming and self._coming[0].arrival_s <= now:
            request = self._coming.popleft()
            self._log.arrival_s[request.number] = request.arrival_s
            arrived.append(request)
        return arrived

    def wait(self) -> bool:
        """Sleeps until the next request arrives. Returns False at once if no request is left."""
        seconds = self.next_s
        if seconds is not None:
            time.sleep(seconds)
        return seconds is not None

    @property
    def next_s(self) -> float | None:
        """Seconds until the next request arrives, at least ``SHORTEST_SLEEP_S``; None if no request is left."""
        return max(self._coming[0].arrival_s - self.now(), SHORTEST_SLEEP_S) if self._coming else None
