"""The turns of the benchmark ``detector``: one at a time, the pipeline and the usual nodes get images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.common.turns import rotated
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Observer
from benchmarks.ros.rival_turns import LATENCY, SATURATION, Moment, RivalTurns
from benchmarks.ros.trace import Trace

WARM_UP_HZ = 200.0
TOO_FAST = 2.0  # the camera's rate at saturation, as a multiple of the fastest rival's frames/s
MODERATE = 0.5  # the camera's rate for latency, as a multiple of the slowest rival's
# How long a rival is measured in a turn. One frame more or less changes a count over 2 s by 2 %.
WARM_UP_S, SATURATED_S, MODERATE_S = 1.5, 2.0, 1.5
AGE = "age p50"
SETTLE_S = 0.4  # how long it runs before: the pipeline needs some frames to notice how fast they come


class DetectorBench:
    """Measures the pipeline and the usual nodes.

    Args:
        observer: receives the detections.
        feed: sends the images.
        trace: the trace of the pipeline's batches.
        processes: the process ids of each rival.

    Attributes:
        rivals: the names of the rivals.
        usage: memory and processor time of each rival's process, by contest.
    """

    def __init__(self, observer: Observer, feed: Feed, trace: Trace, processes: Mapping[str, Sequence[int]]) -> None:
        self._turns = RivalTurns(
            observer, trace, processes, set_rate=lambda rival, rate: feed.rate(f"/{rival}/image", rate)
        )
        self._capacities: dict[str, float] = {}
        self.rivals = self._turns.rivals
        self.usage = self._turns.usage

    def warm_up(self) -> None:
        """Measures how many frames a second each rival can take, until they are steady."""
        for rival in self._turns.rivals:
            self._capacities[rival] = self._turns.capacity_hz(
                rival, rate=WARM_UP_HZ, seconds=WARM_UP_S, settle_s=SETTLE_S
            )

    def saturate(self, turn: int) -> dict[str, float]:
        """Returns each rival's frames a second, and the median age of its detections, with a camera that is too fast.

        Ages are in seconds. For the pipeline, it also returns the share of the time in which each stage worked.
        """
        rate = TOO_FAST * max(self._capacities.values())
        found: dict[str, float] = {}
        for rival in rotated(self._turns.rivals, turn):
            moment = self._watch(SATURATION, rival, rate, SATURATED_S)
            found |= {rival: moment.frames_hz, f"{rival} {AGE}": moment.latency_s, **moment.shares}
        return found

    def pace(self, turn: int) -> dict[str, float]:
        """Returns each rival's median latency in seconds, with a camera of half the slowest rival's rate.

        For the pipeline, it also returns the share of the time in which each stage worked.
        """
        rate = MODERATE * min(self._capacities.values())
        found: dict[str, float] = {}
        for rival in rotated(self._turns.rivals, turn):
            moment = self._watch(LATENCY, rival, rate, MODERATE_S)
            found |= {rival: moment.latency_s, **moment.shares}
        return found

    def _watch(self, contest: str, rival: str, rate: float, seconds: float) -> Moment:
        return self._turns.watch(contest, rival, rate=rate, seconds=seconds, settle_s=SETTLE_S)
