"""Decides from running executions when to use lanes, and whether a model's lanes pay.

This serves while costs of executions are not known. Both classes are pure policies: callers pass the times.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Sequence

BUSY, CALM = 0.85, 0.7  # lanes are used above the first utilisation of all cores, until it falls below the second
WEIGHT = 0.25  # the weight of the newest sample in a moving average
MAX_ALONE = 2  # the most executions in a row that begin on a lane while nothing else runs; the next has all cores
MAX_INTERVAL = 2.0  # longer pauses count as this many times an execution's time, so that they are soon forgotten
CONTENDED = 0.6  # if lanes get less than this share of their cores' time, other processes use a core and more
MEMORY_S = 0.3  # the seconds over which this share is averaged
PAUSE_S, MAX_PAUSE_S = 2.0, 32.0  # the first and the longest time for which lanes are then not used
TRIALS, MIN_WHOLE = 16, 3  # the most executions of each kind and size that are compared, and the fewest on all cores
TRIAL_LIMIT = 1.1  # so many times the limit is accepted where lanes need only serve more: others may have used a core


class LaneRule:
    """Decides whether the next execution may begin on a lane, from how fast executions come and how long they take.

    The threads of one execution wait for each other at every operation. So two executions side by side are done sooner
    than one after the other on all cores. An execution alone is done sooner on all cores. Lanes are used while
    executions come nearly as fast as all cores can serve them one by one, or faster.

    Lanes need free cores. If other processes use the cores, executions side by side only take longer. The processor
    time of this process shows it: if all lanes are at work on free cores, they get all of the cores' time. If they get
    clearly less, lanes are not used for a while, and for longer each time.
    """

    def __init__(self) -> None:
        self._is_busy = False
        self._alone = 0  # executions in a row that began on a lane while nothing else ran
        self._last_begin = -math.inf
        self._interval_s = math.inf  # the time between the beginnings of two executions
        self._whole_s = 0.0  # the time of an execution on all cores; 0: not known yet
        self._share = 1.0  # the share of their cores' time that busy lanes get
        self._pause_s = PAUSE_S
        self._paused_until = -math.inf

    def wants_lanes(self, now: float, *, is_idle: bool) -> bool:
        """Returns whether an execution that begins at ``now`` should run on a lane.

        Args:
            now: seconds of the steady clock.
            is_idle: whether nothing runs. If not, other executions run on lanes.
        """
        if self.is_paused(now):
            return False
        if not is_idle:
            return self._is_busy
        return self._alone < MAX_ALONE and self._busy_with(self._interval_at(now))

    def is_paused(self, now: float) -> bool:
        """Returns whether lanes are not used for a while, because other processes use the cores."""
        return now < self._paused_until

    def begin(self, now: float, *, on_lane: bool, is_idle: bool) -> None:
        """Notes that an execution begins.

        Args:
            now: seconds of the steady clock.
            on_lane: whether the execution runs on a lane; otherwise it has all cores.
            is_idle: whether nothing else runs.
        """
        interval_s = self._interval_at(now)
        self._is_busy, self._interval_s = self._busy_with(interval_s), interval_s
        self._last_begin = now
        self._alone = self._alone + 1 if on_lane and is_idle else 0

    def end(self, took_s: float, *, on_lane: bool) -> None:
        """Notes that an execution is over. ``took_s`` is the time from its beginning to its end, in seconds."""
        if not on_lane:
            self._whole_s = _average(self._whole_s, took_s) if self._whole_s else took_s
            return
        # All cores take no longer than a lane, so the lane's time is a limit. Otherwise one disturbed execution on all
        # cores would count for as long as lanes are used, and would keep them in use.
        self._whole_s = min(self._whole_s, took_s)

    def note_share(self, share: float, seconds: float, now: float) -> None:
        """Notes the processor time that the process got while all lanes were at work.

        Args:
            share: the processor time as a share of the time of the lanes' cores.
            seconds: how long all lanes were at work.
            now: seconds of the steady clock.
        """
        self._share += min(1.0, seconds / MEMORY_S) * (min(1.0, share) - self._share)
        if self._share < CONTENDED:
            self._share, self._paused_until = 1.0, now + self._pause_s
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    def _interval_at(self, now: float) -> float:
        interval_s = min(now - self._last_begin, MAX_INTERVAL * self._whole_s or math.inf)
        return _average(self._interval_s, interval_s) if self._interval_s < math.inf else interval_s

    def _busy_with(self, interval_s: float) -> bool:
        utilisation = self._whole_s / interval_s if interval_s > 0 else math.inf
        return utilisation > (CALM if self._is_busy else BUSY)


class LaneTrial:
    """Compares one model's executions side by side on lanes with its executions on all cores.

    Only executions of the same number of images are compared. The last ``TRIALS`` of each kind count.

    Args:
        num_lanes: how many executions are computed side by side.
    """

    def __init__(self, num_lanes: int) -> None:
        self._num_lanes = num_lanes
        self._whole_s: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=TRIALS))
        self._lane_s: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=TRIALS))
        self._verdicts: dict[float, bool] = {}  # by limit

    def note(self, seconds: float, *, num_images: int, on_lane: bool) -> None:
        """Notes an execution.

        Args:
            seconds: the time from its beginning to its end.
            num_images: number of images in its batch.
            on_lane: whether it ran on a lane, with all other lanes at work; otherwise it had all cores.
        """
        (self._lane_s if on_lane else self._whole_s)[num_images].append(seconds)

    def needs_all_cores(self, num_images: int) -> bool:
        """Returns whether too few executions of so many images had all cores for a comparison."""
        return len(self._whole_s[num_images]) < MIN_WHOLE

    def lanes_pay(self, limit: float) -> bool | None:
        """Returns whether lanes pay; None while that is not known. What was known once stays.

        With the number of lanes as the limit, lanes pay if they serve more. One execution that shows it is enough.
        Otherwise, ``TRIALS`` executions decide: the fastest of them may take ``TRIAL_LIMIT`` times the limit.

        With a lower limit, each image must also wait less. So the medians of ``TRIALS`` executions decide.

        Args:
            limit: how many times as long as on all cores an execution may take on a lane, up to the number of lanes.
        """
        for num_images, lane_s in self._lane_s.items():
            if limit not in self._verdicts and not self.needs_all_cores(num_images):
                verdict = self._judged(limit, self._whole_s[num_images], lane_s)
                if verdict is not None:
                    self._verdicts[limit] = verdict
        return self._verdicts.get(limit)

    def _judged(self, limit: float, whole_s: Sequence[float], lane_s: Sequence[float]) -> bool | None:
        is_over = len(lane_s) == TRIALS
        if limit < self._num_lanes:
            return statistics.median(lane_s) <= limit * statistics.median(whole_s) if is_over else None
        fastest_s, limit_s = min(lane_s), limit * min(whole_s)
        if fastest_s < limit_s:
            return True
        return fastest_s < TRIAL_LIMIT * limit_s if is_over else None


def _average(before: float, sample: float) -> float:
    return before + WEIGHT * (sample - before)
