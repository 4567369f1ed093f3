"""The turns of the benchmark ``overload``: its loads, and the figures measured under each load."""

from __future__ import annotations

import math
import statistics
import time

from benchmarks.common.turns import rotated
from benchmarks.common.usage import MB, resident_bytes
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Arrivals, Observer
from benchmarks.ros.process_usage import ProcessUsage
from benchmarks.ros.rival_turns import steady
from benchmarks.ros.trace import Trace, busy
from split_infer_ros.msg import PipelineReport

PIPELINE = "pipeline"
CAMERAS = ("/pipeline/left/image", "/pipeline/right/image")
MODERATE, FLOODED = "moderate", "flooded"
LOADS = {MODERATE: 0.9, FLOODED: 3.0}  # as multiples of the pipeline's capacity
MIN_HZ, MAX_HZ = 15.0, 960.0  # the lowest and highest rate of both cameras together that is tried to find the capacity
GROWTH = 1.3  # the capacity is found once twice the frames in give less than this many times the frames out
CAPACITY_S, SETTLE_S, TURN_S = 1.2, 0.3, 0.6
REPORT_S = 0.6  # at most between two reports
DRAIN_S = 1.0  # in which all frames that came before should be published or dropped
MEMORY_PERIOD_S = 0.1  # between two readings of the memory


class Bench:
    """Measures a pipeline while two cameras send images to it.

    Attributes:
        reports: all reports that the pipeline has published.
        ages: the ages of the frames of each load, in seconds, turn by turn.
        usage: the usage of the pipeline's process under each load.
        capacity: how many frames per second the pipeline can process; NaN before ``find_capacity``.
        seconds: three numbers for each second of the flood. They are the seconds from the start of the flood, the mean
            memory in MB, and the received frames per published frame.
        memory: pairs of a time since the start of the flood, in seconds, and the memory in MB.
    """

    def __init__(self, observer: Observer, feed: Feed, trace: Trace, process: int) -> None:
        self.reports: list[PipelineReport] = []
        self.ages: dict[str, list[list[float]]] = {load: [] for load in LOADS}
        self.usage = ProcessUsage({load: [process] for load in LOADS})
        self.seconds: list[tuple[float, float, float]] = []
        self.memory: list[tuple[float, float]] = []
        self.capacity = math.nan
        self._feed = feed
        self._trace = trace
        self._process = process
        self._arrivals = Arrivals(observer, f"/{PIPELINE}/detections")
        observer.subscribe(PipelineReport, f"/{PIPELINE}/report", self.reports.append)

    def find_capacity(self) -> None:
        """Measures how many frames per second the pipeline can process, once it is steady, and sets ``capacity``."""
        rate, published = MIN_HZ, 0.0
        while True:
            self._send(rate)
            before, published = published, self._arrivals.during(CAPACITY_S)[0]
            # Cameras in phase lose frames at any rate, so published frames are compared with those at the last rate.
            if published < GROWTH * before or rate >= MAX_HZ:
                self.capacity = max(before, steady(lambda: self._arrivals.during(CAPACITY_S)[0]))
                return
            rate *= 2

    def turn(self, number: int) -> dict[str, float]:
        """Sends each load in changing order.

        Returns the published frames per second by load, and the share of the time in which each stage worked.
        """
        found = {}
        for load in rotated(list(LOADS), number):
            self._send(LOADS[load] * self.capacity)
            begin = time.monotonic()
            with self.usage.of(load):
                found[load], ages = self._arrivals.during(TURN_S)
            end = time.monotonic()
            self.ages[load].append(ages)
            shares = busy(self._trace.between(begin, end), begin, end)
            found |= {f"{load} {stage}": share for stage, share in shares.items()}
        return found

    def flood(self, seconds: int) -> None:
        """Sends far more frames than the pipeline can process for ``seconds`` seconds, and records the memory.

        Then it stops the cameras, and waits for the last report, which says how many frames are still in flight.
        """
        self._send(LOADS[FLOODED] * self.capacity)
        time.sleep(REPORT_S)  # otherwise the first report would be about the previous load
        begin = time.monotonic()
        for _ in range(seconds):
            start, before, first = time.monotonic(), self.reports[-1], len(self.memory)
            while (now := time.monotonic()) < start + 1.0:
                self.memory.append((now - begin, resident_bytes(self._process) / MB))
                time.sleep(MEMORY_PERIOD_S)
            after = self.reports[-1]
            come = (after.received - before.received) / max(1, after.published - before.published)
            held = statistics.fmean(held for _, held in self.memory[first:])
            self.seconds.append((start - begin, held, come))
        self._set_cameras(0.0)
        time.sleep(DRAIN_S + REPORT_S)

    def _send(self, rate: float) -> None:
        """Makes both cameras together send at this rate, and waits until they do."""
        self._set_cameras(rate)
        self._arrivals.settle(SETTLE_S)

    def _set_cameras(self, rate: float) -> None:
        for camera in CAMERAS:
            self._feed.rate(camera, rate / len(CAMERAS))
