"""At most so many frames a second from each camera: pure policy, time is passed in."""

from __future__ import annotations

import math
from collections.abc import Hashable


class RateLimiter:
    """Decides frame by frame.

    Args:
        max_rate_hz: of each camera; 0 is without limit.
    """

    def __init__(self, max_rate_hz: float) -> None:
        self.max_rate_hz = max_rate_hz
        self._passed: dict[Hashable, float] = {}  # where on the grid the last frame passed

    def admits(self, source: Hashable, now: float) -> bool:
        """True if a frame of that camera may pass at ``now`` (seconds).

        Frames pass on a grid of 1 / max_rate_hz: one that comes a little late does not delay the next, so a
        camera just above the limit is not halved.
        """
        if not self.max_rate_hz:
            return True
        period = 1 / self.max_rate_hz
        due = self._passed.get(source, -math.inf) + period
        if now < due - 0.05 * period:  # what jitters by a twentieth of a period is on time
            return False
        self._passed[source] = due if due + period > now else now
        return True
