"""When executions use lanes as long as their costs are not known. It is pure policy: the time is passed in."""

from __future__ import annotations

import math

BUSY, CALM = 0.85, 0.7  # utilisation of all cores from which on lanes are used, and below which no longer
WEIGHT = 0.25  # of the newest sample in a moving average
MAX_ALONE = 2  # executions in a row that begin on a lane while no other one runs; the next has all cores
MAX_INTERVAL = 2.0  # times an execution's time: longer pauses count as long as this, so that they are soon forgotten
CONTENDED = 0.75  # below this share of the processor time that all lanes could have, others use their cores
MEMORY_S = 0.5  # over which that share is averaged
PAUSE_S, MAX_PAUSE_S = 2.0, 32.0  # for which lanes are not used after that: first, and at most


class LaneRule:
    """Decides whether the next execution may begin on a lane, from how fast executions come and how long they take.

    The threads of one execution wait for each other at every operation. So two executions side by side are done sooner
    than one after the other on all cores. An execution alone is done sooner on all cores. Lanes are used while
    executions come nearly as fast as all cores can serve them one by one, or faster.

    Lanes need cores that are free. If other processes use them, executions side by side only take longer. The processor
    time of the process tells: while all lanes are at work on free cores, it is the time that passes on all of them.
    Lanes are otherwise left alone for a while, and longer each time.
    """

    def __init__(self) -> None:
        self._is_busy = False
        self._alone = 0  # executions in a row that began on a lane while no other one ran
        self._last_begin = -math.inf
        self._interval_s = math.inf  # from the beginning of an execution to the next one's
        self._whole_s = 0.0  # the time of an execution on all cores; 0: not known yet
        self._share = 1.0  # of the processor time in the time of executions on lanes
        self._pause_s = PAUSE_S
        self._paused_until = -math.inf

    def wants_lanes(self, now: float, *, is_idle: bool) -> bool:
        """Returns whether an execution that begins at ``now``, in seconds, is to have a lane.

        Args:
            now: seconds of the steady clock.
            is_idle: whether nothing runs. If not, other executions run on lanes.
        """
        if self.is_paused(now):
            return False
        if not is_idle:
            return self._is_busy
        return self._alone < MAX_ALONE and self._busy_at(now)

    def is_paused(self, now: float) -> bool:
        """Returns whether others use the cores, so that lanes are left alone for a while."""
        return now < self._paused_until

    def begin(self, now: float, *, on_lane: bool, is_idle: bool) -> None:
        """Notes that an execution begins. ``is_idle``: nothing else runs."""
        self._is_busy, self._interval_s = self._busy_at(now), self._interval_at(now)
        self._last_begin = now
        self._alone = self._alone + 1 if on_lane and is_idle else 0

    def end(self, took_s: float, *, on_lane: bool) -> None:
        """Notes that an execution is over, which took so many seconds from its beginning to its end."""
        if not on_lane:
            self._whole_s = _average(self._whole_s, took_s) if self._whole_s else took_s
            return
        # All cores take no longer than a lane. Otherwise one disturbed execution on all cores would count for as long
        # as lanes are used, and keep them in use.
        self._whole_s = min(self._whole_s, took_s)

    def note_share(self, share: float, seconds: float, now: float) -> None:
        """Notes the processor time that the process got while all lanes were at work.

        Args:
            share: of what the lanes' cores have.
            seconds: for which that was.
            now: seconds of the steady clock.
        """
        self._share += min(1.0, seconds / MEMORY_S) * (min(1.0, share) - self._share)
        if self._share < CONTENDED:
            self._share, self._paused_until = 1.0, now + self._pause_s
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    def _interval_at(self, now: float) -> float:
        interval_s = min(now - self._last_begin, MAX_INTERVAL * self._whole_s or math.inf)
        return _average(self._interval_s, interval_s) if self._interval_s < math.inf else interval_s

    def _busy_at(self, now: float) -> bool:
        interval_s = self._interval_at(now)
        utilisation = self._whole_s / interval_s if interval_s > 0 else math.inf
        return utilisation > (CALM if self._is_busy else BUSY)


def _average(before: float, sample: float) -> float:
    return before + WEIGHT * (sample - before)
