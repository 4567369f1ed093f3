"""When executions use lanes as long as their costs are not known. It is pure policy: the time is passed in."""

from __future__ import annotations

import math

BUSY, CALM = 0.85, 0.7  # utilisation of all cores from which on lanes are used, and below which no longer
WEIGHT = 0.25  # of the newest sample in a moving average
MAX_ALONE = 2  # executions in a row that begin on a lane while no other one runs; the next has all cores
MAX_INTERVAL = 2.0  # times an execution's time: longer pauses count as long as this, so that they are soon forgotten
CONTENDED = 0.75  # below this share of the processor time that all lanes could have, others use their cores
MEMORY_S = 0.5  # over which that share is averaged
MAX_CONTENDED = 8  # executions in a row on lanes while others use cores; the next has all cores, and shows whether
FREE = 0.8  # below this part of a lane's time, an execution on all cores found them free
UNDISTURBED = 1.3  # the same, times its expected time, where costs are known


class LaneRule:
    """Decides whether the next execution may begin on a lane, from how fast executions come and how long they take.

    The threads of one execution wait for each other at every operation. So two executions side by side are done sooner
    than one after the other on all cores. An execution alone is done sooner on all cores. Lanes are used while
    executions come nearly as fast as all cores can serve them one by one, or faster.

    Lanes need cores that are free. If other processes use them, executions side by side only take longer. The processor
    time of the process tells: while all lanes are at work on free cores, it is the time that passes on all of them.
    Otherwise only as many lanes are used as have cores for themselves, at least one. An execution on all cores would
    wait for its thread on the core that others use. One now and then shows whether they are free again.

    Args:
        num_lanes: that there are.
    """

    def __init__(self, num_lanes: int = 0) -> None:
        self._num_lanes = num_lanes
        self._most = num_lanes
        self._is_busy = False
        self._alone = 0  # executions in a row that began on a lane while no other one ran
        self._on_lanes = 0  # executions in a row that began on a lane
        self._last_begin = -math.inf
        self._interval_s = math.inf  # from the beginning of an execution to the next one's
        self._whole_s = 0.0  # the time of an execution on all cores; 0: not known yet
        self._lane_s = 0.0  # the same on a lane
        self._share = 1.0  # of the processor time in the time of executions on lanes

    @property
    def most_lanes(self) -> int:
        """How many lanes may be at work at a time."""
        return self._most

    @property
    def is_contended(self) -> bool:
        """Whether others use cores, so that not all lanes may be at work."""
        return self._most < self._num_lanes

    def wants_lanes(self, now: float, *, is_idle: bool) -> bool:
        """Returns whether an execution that begins at ``now``, in seconds, is to have a lane.

        Args:
            now: seconds of the steady clock.
            is_idle: whether nothing runs. If not, other executions run on lanes.
        """
        if self.is_contended:
            return not self.wants_all_cores and self._busy_at(now)
        if not is_idle:
            return self._is_busy
        return self._alone < MAX_ALONE and self._busy_at(now)

    @property
    def wants_all_cores(self) -> bool:
        """Whether the next execution is to show if the cores are free again."""
        return self.is_contended and self._on_lanes >= MAX_CONTENDED

    def begin(self, now: float, *, on_lane: bool, is_idle: bool) -> None:
        """Notes that an execution begins. ``is_idle``: nothing else runs."""
        self._is_busy, self._interval_s = self._busy_at(now), self._interval_at(now)
        self._last_begin = now
        self._alone = self._alone + 1 if on_lane and is_idle else 0
        self._on_lanes = self._on_lanes + 1 if on_lane else 0

    def end(self, took_s: float, *, on_lane: bool, expected_s: float = 0.0) -> None:
        """Notes that an execution is over.

        Args:
            took_s: seconds from its beginning to its end.
            on_lane: whether it had a lane, or all cores.
            expected_s: seconds that it takes while nothing else runs; 0 if that is not known.
        """
        if on_lane:
            self._lane_s = _average(self._lane_s, took_s) if self._lane_s else took_s
            # All cores take no longer than a lane. Otherwise one disturbed execution on all cores would count for as
            # long as lanes are used, and keep them in use.
            self._whole_s = min(self._whole_s, took_s)
            return
        self._whole_s = _average(self._whole_s, took_s) if self._whole_s else took_s
        found_free = took_s < (UNDISTURBED * expected_s if expected_s else FREE * self._lane_s)
        if self.is_contended and found_free:
            self._most, self._share = self._num_lanes, 1.0

    def note_share(self, share: float, seconds: float) -> None:
        """Notes the processor time that the process got while all lanes were at work.

        Args:
            share: of what the lanes' cores have.
            seconds: for which that was.
        """
        self._share += min(1.0, seconds / MEMORY_S) * (min(1.0, share) - self._share)
        if self._share < CONTENDED:
            self._most = max(1, int(self._share * self._num_lanes))

    @property
    def _typical_s(self) -> float:
        """How long an execution takes as they run now; 0 if that is not known."""
        return self._lane_s if self.is_contended else self._whole_s

    def _interval_at(self, now: float) -> float:
        interval_s = min(now - self._last_begin, MAX_INTERVAL * self._typical_s or math.inf)
        return _average(self._interval_s, interval_s) if self._interval_s < math.inf else interval_s

    def _busy_at(self, now: float) -> bool:
        interval_s = self._interval_at(now)
        utilisation = self._typical_s / interval_s if interval_s > 0 else math.inf
        return utilisation > (CALM if self._is_busy else BUSY)


def _average(before: float, sample: float) -> float:
    return before + WEIGHT * (sample - before)
