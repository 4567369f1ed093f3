"""Decides whether a batch has all cores, or a lane beside another batch. It is pure policy: the time is passed in."""

from __future__ import annotations

import math

NUM_LANES = 2  # with more of them, each batch would take longer for little gain
BUSY, CALM = 0.85, 0.7  # utilisation of all cores from which on lanes are used, and below which no longer
WEIGHT = 0.25  # of the newest sample in a moving average
MAX_ALONE = 2  # batches in a row that begin on a lane while no other one runs; the next has all cores
MAX_INTERVAL = 2.0  # times the time of a batch: longer pauses count as long as this, so that they are soon forgotten


class LaneChoice:
    """Decides whether the next batch may begin, and on which lane.

    A lane has half of the cores. Threads of one batch wait for each other at every operation. So two batches side by
    side are done sooner than one after the other on all cores. A batch alone is done sooner on all cores. Lanes are
    used while batches come nearly as fast as all cores can serve them one by one, or faster.

    Args:
        num_lanes: how many there are; 1: batches always have all cores, or the GPU.
        depth: so many batches may be under way on all cores, or on the GPU.

    Attributes:
        num_lanes: as given; may be changed while nothing is under way.
    """

    def __init__(self, num_lanes: int = 1, depth: int = 1) -> None:
        self.num_lanes = num_lanes
        self._depth = depth
        self._free_lanes: list[int] = []
        self._running = 0
        self._on_lanes = False  # those that run
        self._is_busy = False
        self._alone = 0  # batches in a row that began on a lane while no other one ran
        self._last_begin = -math.inf
        self._interval_s = math.inf  # from the beginning of a batch to the next one's
        self._whole_s = 0.0  # the time of a batch on all cores; 0: not known yet

    def has_room(self, may_use_lanes: bool = True) -> bool:
        """Returns whether a batch may begin now.

        Args:
            may_use_lanes: whether this batch can be computed beside another one.
        """
        if self._running == 0:
            return True
        if self._on_lanes:
            return may_use_lanes and self._is_busy and self._running < self.num_lanes
        return self._running < self._depth

    def begin(self, now: float, may_use_lanes: bool = True) -> int | None:
        """Notes that a batch begins at ``now``, in seconds. Returns its lane; None for all cores, or the GPU."""
        self._note_begin(now)
        if self._running == 0:
            self._alone = self._alone + 1 if self._on_lanes else 0
            self._on_lanes = may_use_lanes and self._is_busy and self.num_lanes > 1 and self._alone <= MAX_ALONE
            self._free_lanes = list(range(self.num_lanes))
        else:
            self._alone = 0
        self._running += 1
        return self._free_lanes.pop(0) if self._on_lanes else None

    def end(self, lane: int | None, began: float, now: float) -> None:
        """Notes that a batch is handed over or lost, which began on that lane at ``began``."""
        self._running -= 1
        took_s = now - began
        if lane is None:
            self._whole_s = _average(self._whole_s, took_s) if self._whole_s else took_s
        else:
            self._free_lanes.append(lane)
            # All cores take no longer than a lane. Otherwise one disturbed batch on all cores would count for as long
            # as lanes are used, and keep them in use.
            self._whole_s = min(self._whole_s, took_s)

    def _note_begin(self, now: float) -> None:
        interval_s = min(now - self._last_begin, MAX_INTERVAL * self._whole_s or math.inf)
        self._last_begin = now
        self._interval_s = _average(self._interval_s, interval_s) if self._interval_s < math.inf else interval_s
        utilisation = self._whole_s / self._interval_s if self._interval_s > 0 else math.inf
        self._is_busy = utilisation > (CALM if self._is_busy else BUSY)


def _average(before: float, sample: float) -> float:
    return before + WEIGHT * (sample - before)
