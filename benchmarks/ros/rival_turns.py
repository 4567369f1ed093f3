"""Measures rivals through ROS: one rival at a time gets images, and its detections are watched for a moment."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.ros.observer import Arrivals, Observer
from benchmarks.ros.process_usage import ProcessUsage
from benchmarks.ros.trace import Batch, Trace, busy

PIPELINE = "pipeline"
BACKBONE_BUSY, HEAD_BUSY = "backbone_busy", "head_busy"
SATURATION, LATENCY = "saturation", "latency"
GAIN = 1.05  # a node is steady once no measurement of the last ``CALM_ROUNDS`` was so many times the best one before
CALM_ROUNDS, MAX_ROUNDS = 4, 16


def steady(measure: Callable[[], float]) -> float:
    """Measures a node's frames a second until they no longer grow, and returns the most.

    A node is slower at first: its memory is new, and the pipeline has not compared its lanes yet. If a camera's rate
    were chosen by such a measurement, it would be too low for all turns.

    Args:
        measure: returns frames a second.
    """
    best, calm = 0.0, 0
    for _ in range(MAX_ROUNDS):
        found = measure()
        calm = 0 if found > GAIN * best else calm + 1
        best = max(best, found)
        if calm == CALM_ROUNDS:
            break
    return best


@dataclass(frozen=True, slots=True)
class Moment:
    """What was measured while a rival was watched.

    Attributes:
        frames_hz: how many detections arrived per second.
        latency_s: the median age of the detections in seconds, from the image's stamp to the arrival.
        batches: the pipeline's batches from its trace; empty for other rivals.
        shares: the share of the time in which each of the pipeline's stages worked; empty for other rivals.
    """

    frames_hz: float
    latency_s: float
    batches: Sequence[Batch]
    shares: Mapping[str, float]


class RivalTurns:
    """Gives images to one rival at a time.

    Args:
        observer: receives the detections.
        trace: the trace of the pipeline's batches.
        processes: the process ids of each rival.
        set_rate: sets how many images per second a rival's camera sends; 0 stops it.

    Attributes:
        rivals: the names of the rivals.
        usage: memory and processor time of each rival's processes, for the contests SATURATION and LATENCY.
    """

    def __init__(
        self,
        observer: Observer,
        trace: Trace,
        processes: Mapping[str, Sequence[int]],
        set_rate: Callable[[str, float], None],
    ) -> None:
        self._trace = trace
        self._set_rate = set_rate
        self._arrivals = {name: Arrivals(observer, f"/{name}/detections") for name in processes}
        self.rivals = list(processes)
        self.usage = {contest: ProcessUsage(processes) for contest in (SATURATION, LATENCY)}

    def capacity_hz(self, rival: str, *, rate: float, seconds: float, settle_s: float) -> float:
        """Returns a rival's frames a second once they are ``steady``. The arguments are those of ``watch``."""
        return steady(lambda: self.watch(SATURATION, rival, rate=rate, seconds=seconds, settle_s=settle_s).frames_hz)

    def watch(self, contest: str, rival: str, *, rate: float, seconds: float, settle_s: float) -> Moment:
        """Sends a rival images, and watches it once it has run for ``settle_s`` seconds.

        Args:
            contest: the contest to which the rival's usage is added: SATURATION or LATENCY.
            rival: the rival's name.
            rate: how many images per second the camera sends.
            seconds: how long the rival is watched.
            settle_s: how long the rival runs before it is watched.
        """
        arrivals = self._arrivals[rival]
        self._set_rate(rival, rate)
        arrivals.settle(settle_s)
        begin = time.monotonic()
        with self.usage[contest].of(rival):
            frames_hz, ages = arrivals.during(seconds)
        end = time.monotonic()
        self._set_rate(rival, 0.0)
        arrivals.wait_for_quiet()
        batches = self._trace.between(begin, end) if rival == PIPELINE else []
        shares = busy(batches, begin, end) if rival == PIPELINE else {}
        return Moment(frames_hz, statistics.median(ages), batches, shares)
