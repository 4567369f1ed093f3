"""The turns of the benchmark ``tenants``: all cameras of one rival at a time send images."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np

from benchmarks.common.turns import rotated
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Arrivals, Observer
from benchmarks.ros.process_memory import memory_mb
from benchmarks.ros.process_usage import ProcessUsage
from benchmarks.ros.rival_turns import steady
from benchmarks.ros.together import Together, Watched
from benchmarks.tenants.cell import Cell, topics

TOO_FAST, MODERATE = LOADS = ("cameras too fast", "half load")
HZ, AGE, MEMORY = "hz", "age", "memory"
# The rate of all cameras together, as a multiple of the fastest rival's frames/s, and of the slowest one's.
TIMES_FASTEST, TIMES_SLOWEST = 1.5, 0.5
WARM_UP_HZ = 150.0  # of all cameras together
WARM_UP_S, SETTLE_S = 1.0, 0.5
FULL_TURN_S, QUICK_TURN_S = 3.0, 1.5
SEARCH_HZ = 10.0  # of all cameras together, while a rival looks for better engines
SEARCH_BEGINS_S, SEARCH_S = 4.0, 300.0


class TenantsBench:
    """Measures the rivals of one cell.

    Args:
        cell: the cell.
        observer: receives the detections.
        feed: sends the images.
        processes: the process ids of each rival.
        turn_s: for how many seconds a rival is watched in a turn.

    Attributes:
        rivals: the names of the rivals.
        usage: processor time and peak memory of each rival's processes, by load.
        ages: the ages of each rival's results in seconds, turn by turn and camera by camera, by load.
        rates: the images a second of all cameras together, by load; empty before ``warm_up``.
    """

    def __init__(
        self, cell: Cell, observer: Observer, feed: Feed, processes: Mapping[str, Sequence[int]], turn_s: float
    ) -> None:
        self.rivals = list(processes)
        self.usage = {load: ProcessUsage(processes) for load in LOADS}
        self.ages: dict[str, dict[str, list[Sequence[Sequence[float]]]]] = {
            load: {rival: [] for rival in processes} for load in LOADS
        }
        self.rates: dict[str, float] = {}
        self._processes = processes
        self._turn_s = turn_s
        self._feed = feed
        self._cameras = {rival: topics(cell, rival, "image") for rival in processes}
        self._together = {
            rival: Together([Arrivals(observer, topic) for topic in topics(cell, rival, "detections")])
            for rival in processes
        }

    def run_while(self, rival: str, goes_on: Callable[[], bool]) -> None:
        """Sends images to a rival while it still looks for better engines or precisions, at most ``SEARCH_S`` seconds.

        Args:
            rival: the rival's name.
            goes_on: returns whether it does.
        """
        end = time.monotonic() + SEARCH_S
        self._watch(rival, SEARCH_HZ, SEARCH_BEGINS_S)
        while goes_on() and time.monotonic() < end:
            self._watch(rival, SEARCH_HZ, WARM_UP_S)

    def warm_up(self) -> None:
        """Measures how many frames a second each rival can take, until they are steady. Sets ``rates``."""
        found = [steady(partial(self._capacity_hz, rival)) for rival in self.rivals]
        self.rates = {TOO_FAST: TIMES_FASTEST * max(found), MODERATE: TIMES_SLOWEST * min(found)}

    def saturate(self, turn: int) -> dict[str, float]:
        """Returns the figures of each rival with cameras that are too fast.

        They are the frames a second of all cameras, the median age in seconds, and the memory in MB of all processes.
        """
        found = self._turn(TOO_FAST, turn)
        return found | {f"{rival} {MEMORY}": memory_mb(ids) for rival, ids in self._processes.items()}

    def pace(self, turn: int) -> dict[str, float]:
        """Returns each rival's frames a second and median age in seconds, with cameras at half the load."""
        return self._turn(MODERATE, turn)

    def _turn(self, load: str, turn: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for rival in rotated(self.rivals, turn):
            watched = self._watch(rival, self.rates[load], self._turn_s, turn, load)
            self.ages[load][rival].append(watched.ages)
            found |= {
                f"{rival} {HZ}": watched.frames_hz,
                f"{rival} {AGE}": float(np.median(watched.all_ages)),
            }
        return found

    def _capacity_hz(self, rival: str) -> float:
        return self._watch(rival, WARM_UP_HZ, WARM_UP_S).frames_hz

    def _watch(self, rival: str, rate: float, seconds: float, turn: int = 0, load: str | None = None) -> Watched:
        """Makes all cameras of a rival send ``rate`` images a second together, and watches what arrives.

        A camera's first image comes at a random part of its period. These parts depend only on the turn, so all rivals
        get the same images at the same times. If there is a ``load``, the rival's usage is added to that load's.
        """
        chance, cameras, together = random.Random(turn), self._cameras[rival], self._together[rival]
        each_hz = rate / len(cameras)
        for camera in cameras:
            self._feed.rate(camera, each_hz, chance.random() / each_hz)
        together.settle(SETTLE_S)
        with nullcontext() if load is None else self.usage[load].of(rival):
            watched = together.during(seconds)
        for camera in cameras:
            self._feed.rate(camera, 0.0)
        together.wait_for_quiet(max(watched.all_ages))
        return watched
