"""The turns of the benchmark ``pipeline``: its rivals, and the figures measured for each rival."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.common.turns import rotated
from benchmarks.common.usage import Usage
from benchmarks.ros.dds_hop import DdsHop
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Observer
from benchmarks.ros.rival_turns import LATENCY, PIPELINE, SATURATION, RivalTurns
from benchmarks.ros.trace import Trace

NAIVE = "naive"
WITH_CAMERA = "pipeline_with_camera"  # the camera in the pipeline's own process: images do not go over DDS
DDS = "DDS"
HOP = "hop"
BATCH = 4
SMALL, LARGE = 64 * 1280 * 4, 4_900_000  # bytes
WARM_UP_HZ = 100.0
TOO_FAST = 1.5  # the camera's rate at saturation, as a multiple of the rival's own frames/s
PROBE = 5.0  # the camera's rate for the first measurement of a pipeline, as a multiple of the naive node's frames/s
MODERATE = 0.5  # the camera's rate for latency, as a multiple of the naive node's frames/s
WARM_UP_S, SATURATED_S, MODERATE_S = 1.0, 0.5, 0.35  # how long a rival is measured in a turn
SATURATED_SETTLE_S, MODERATE_SETTLE_S = 0.2, 0.05  # how long it runs before it is measured
MESSAGES = 2  # how many messages of each size go through DDS in a turn


class Bench:
    """Measures the rivals. One rival at a time gets images.

    Attributes:
        usage: memory and processor time of each rival's process, by contest.
        own_usage: memory and processor time of this process while messages go through DDS.
    """

    def __init__(
        self, observer: Observer, feed: Feed, trace: Trace, dds: DdsHop, processes: Mapping[str, Sequence[int]]
    ) -> None:
        self._observer = observer
        self._feed = feed
        self._dds = dds
        self._turns = RivalTurns(observer, trace, processes, set_rate=self._set_camera)
        self._batches: dict[str, int] = {}
        self._capacity: dict[str, float] = {}  # frames/s of each rival, measured once
        self.usage = self._turns.usage
        self.own_usage = Usage()

    def warm_up(self) -> None:
        """Measures each rival's frames per second, until they are steady. The camera's rates follow from these."""
        self._capacity[NAIVE] = self._frames_hz(NAIVE, WARM_UP_HZ)
        for rival in self._turns.rivals:
            if rival != NAIVE:
                self._set_batch(rival, BATCH)
                self._capacity[rival] = self._frames_hz(rival, PROBE * self._capacity[NAIVE])

    def saturate(self, turn: int) -> dict[str, float]:
        """Returns each rival's frames per second in a turn with a camera that is too fast for the rival.

        For the pipeline, it also returns the share of the time in which each stage worked.
        """
        found: dict[str, float] = {}
        for rival in rotated(self._turns.rivals, turn):
            rate = TOO_FAST * self._capacity[rival]
            if rival != NAIVE:
                self._set_batch(rival, BATCH)
            moment = self._turns.watch(SATURATION, rival, rate=rate, seconds=SATURATED_S, settle_s=SATURATED_SETTLE_S)
            found |= {rival: moment.frames_hz, **moment.shares}
        return found

    def pace(self, turn: int) -> dict[str, float]:
        """Returns each rival's median latency in a turn with a camera of half the naive node's rate, in seconds.

        It also returns the pipeline's hop, the DDS messages in its place, and the share of the time in which each stage
        worked.
        """
        found: dict[str, float] = {}
        rate = MODERATE * self._capacity[NAIVE]
        self._set_batch(PIPELINE, 1)
        for rival in rotated((PIPELINE, NAIVE), turn):
            moment = self._turns.watch(LATENCY, rival, rate=rate, seconds=MODERATE_S, settle_s=MODERATE_SETTLE_S)
            found |= {rival: moment.latency_s, **moment.shares}
            if rival == PIPELINE:
                found[HOP] = statistics.median(batch.hop_s for batch in moment.batches)
        with self.own_usage.of(DDS):
            for size in (SMALL, LARGE):
                found[f"{DDS} {size}"] = self._dds.median(size, MESSAGES, 1 / rate)
        return found

    def _frames_hz(self, rival: str, rate: float) -> float:
        return self._turns.capacity_hz(rival, rate=rate, seconds=WARM_UP_S, settle_s=SATURATED_SETTLE_S)

    def _set_batch(self, rival: str, size: int) -> None:
        """Sets a pipeline's batch size.

        If it is above 1, the pipeline blocks, and the middleware drops surplus frames.
        """
        if self._batches.get(rival) != size:
            policy = "block" if size > 1 else "latest"
            self._observer.set(f"/{rival}/backbone", batch_size=size, drop_policy=policy)
            self._batches[rival] = size

    def _set_camera(self, rival: str, rate: float) -> None:
        if rival != WITH_CAMERA:
            self._feed.rate(f"/{rival}/image", rate)
        elif rate:
            self._observer.set(camera_of(rival), rate_hz=rate)
            self._observer.transition(camera_of(rival), "activate")
        else:
            self._observer.transition(camera_of(rival), "deactivate")


def camera_of(rival: str) -> str:
    """Returns the name of the camera's node in the rival's own process."""
    return f"/{rival}/camera"
