"""Limits how many frames of each camera pass. It is a pure policy without a clock: callers pass the time."""

from __future__ import annotations

import math
from collections.abc import Hashable

JITTER = 0.05  # a frame may come early by this part of a period and still counts as on time


class RateLimiter:
    """Decides for each frame whether it may pass.

    Args:
        max_rate_hz: how many frames of each camera may pass in a second; 0: no limit.
    """

    def __init__(self, max_rate_hz: float) -> None:
        self.max_rate_hz = max_rate_hz
        self._last_passed: dict[Hashable, float] = {}  # the grid point at which each camera's last frame passed

    def admits(self, source: Hashable, now: float) -> bool:
        """Returns whether a frame of that camera may pass at ``now`` (seconds).

        Frames pass on a grid of 1 / max_rate_hz, so a frame that comes a little late does not delay the next one.
        Without the grid, a camera just above the limit would lose half of its frames.
        """
        if not self.max_rate_hz:
            return True
        period = 1 / self.max_rate_hz
        due = self._last_passed.get(source, -math.inf) + period
        if now < due - JITTER * period:
            return False
        self._last_passed[source] = due if due + period > now else now
        return True
