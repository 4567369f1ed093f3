"""The turns of the benchmark ``detector``: the pipeline and the usual nodes, of which one at a time gets images."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from _feed import Feed
from _process_usage import ProcessUsage
from _ros import Arrivals, Observer
from _trace import Trace, busy
from _turns import rotated

PIPELINE = "pipeline"
BACKBONE_BUSY, HEAD_BUSY = "backbone_busy", "head_busy"
WARM_UP_HZ = 200.0
TOO_FAST = 2.0  # the camera's rate at saturation, as a multiple of the fastest rival's frames/s
MODERATE = 0.5  # the camera's rate for latency, as a multiple of the slowest rival's
WARM_UP_S, SATURATED_S, MODERATE_S = 1.5, 0.8, 0.6  # how long a rival is measured in a turn
SETTLE_S = 0.2  # how long it runs before

SATURATION, LATENCY = "saturation", "latency"


class DetectorBench:
    """Measures the rivals.

    Args:
        observer: receives the detections.
        feed: sends the images.
        trace: of the pipeline's batches.
        processes: the process ids of each rival.

    Attributes:
        usage: the usage of each rival's process, at saturation and at the moderate rate.
    """

    def __init__(self, observer: Observer, feed: Feed, trace: Trace, processes: Mapping[str, Sequence[int]]) -> None:
        self._feed = feed
        self._trace = trace
        self._rivals = list(processes)
        self._arrivals = {name: Arrivals(observer, f"/{name}/detections") for name in processes}
        self._capacities: dict[str, float] = {}
        self.usage = {contest: ProcessUsage(processes) for contest in (SATURATION, LATENCY)}

    def warm_up(self) -> None:
        """Measures how many frames a second each rival can take."""
        for rival in self._rivals:
            self._capacities[rival] = self._measure(SATURATION, rival, WARM_UP_HZ, WARM_UP_S)[0]

    def saturate(self, turn: int) -> dict[str, float]:
        """Returns each rival's frames a second in a turn with a camera that is too fast."""
        rate = TOO_FAST * max(self._capacities.values())
        found = {}
        for rival in rotated(self._rivals, turn):
            found[rival], _, shares = self._measure(SATURATION, rival, rate, SATURATED_S)
            found |= shares
        return found

    def pace(self, turn: int) -> dict[str, float]:
        """Returns each rival's median latency in seconds in a turn with a moderate camera."""
        rate = MODERATE * min(self._capacities.values())
        found = {}
        for rival in rotated(self._rivals, turn):
            _, found[rival], shares = self._measure(LATENCY, rival, rate, MODERATE_S)
            found |= shares
        return found

    def _measure(self, contest: str, rival: str, rate: float, seconds: float) -> tuple[float, float, dict[str, float]]:
        """Returns frames/s and the median latency in seconds; for the pipeline also its busy shares."""
        arrivals, topic = self._arrivals[rival], f"/{rival}/image"
        self._feed.rate(topic, rate)
        arrivals.settle(SETTLE_S)
        begin = time.monotonic()
        with self.usage[contest].of(rival):
            frames, ages = arrivals.during(seconds)
        end = time.monotonic()
        self._feed.rate(topic, 0.0)
        arrivals.wait_for_quiet()
        shares = busy(self._trace.between(begin, end), begin, end) if rival == PIPELINE else {}
        return frames, statistics.median(ages), shares
