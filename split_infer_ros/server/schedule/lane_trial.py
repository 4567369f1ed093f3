"""Finds out from executions whether lanes serve more than all cores. It is a pure policy: callers pass the times."""

from __future__ import annotations

from collections import defaultdict, deque

COUNT = 16  # how many of the last executions of each kind and size are compared
LIMIT = 1.1  # lanes may take this many times as long as all cores, because others may have used a core just then


class LaneTrial:
    """Compares one model's executions side by side on lanes with those on all cores. The fastest of each counts.

    One execution that is faster on a lane shows that lanes serve more. If all ``COUNT`` executions on lanes are clearly
    slower, lanes do not serve more.

    Args:
        num_lanes: how many executions are computed side by side.

    Attributes:
        lanes_pay: the verdict; None while there is none.
    """

    def __init__(self, num_lanes: int) -> None:
        self.lanes_pay: bool | None = None
        self._num_lanes = num_lanes
        self._whole_s: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=COUNT))
        self._lane_s: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=COUNT))

    def note(self, seconds: float, *, num_images: int, on_lane: bool) -> None:
        """Notes an execution.

        Args:
            seconds: the time from its beginning to its end.
            num_images: number of images in its batch.
            on_lane: whether it ran on a lane, with all other lanes at work.
        """
        if self.lanes_pay is not None:
            return
        (self._lane_s if on_lane else self._whole_s)[num_images].append(seconds)
        whole_s, lane_s = self._whole_s[num_images], self._lane_s[num_images]
        if not whole_s or not lane_s:
            return
        fastest_s, limit_s = min(lane_s), self._num_lanes * min(whole_s)
        if fastest_s < limit_s:
            self.lanes_pay = True
        elif len(lane_s) == COUNT:
            self.lanes_pay = fastest_s < LIMIT * limit_s
