"""Two cameras that together are three times faster than the pipeline: what that costs beside the frames it must drop.

The cameras send 640x480 images over DDS, from a process of their own, to a MobileNetV2 (untrained: its speed is a
trained one's). First as many frames as the pipeline can take are counted. Then two loads take turns of a second: 0.9 of
that, and three times as much. Ages are those of all turns of a load: from the image's stamp to the detections' arrival
at an observer outside, the 99th percentile among all frames; its interval is over turns.

At last a stretch of flood without a pause shows whether memory grows, by what the operating system says that the
pipeline's process holds: the line of least squares through the means of its seconds. How many frames come for each that
is published is counted by the pipeline in the same seconds. Every report from the start on is checked for frames that
are missing.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from _feed import Feed
from _process_usage import ProcessUsage
from _ros import Arrivals, Observer, Processes, seconds_of_turns, set_up_middleware
from _rows import measured
from _trace import Trace, busy

from split_infer_ros.msg import PipelineReport
from split_infer_ros.sources import draw_scene
from split_infer_ros.telemetry.claim import Claim, Direction
from split_infer_ros.telemetry.estimate import Estimate, estimate, exact, mean, median
from split_infer_ros.telemetry.picture import Curve, Panel
from split_infer_ros.telemetry.report import Report, arguments, deliver, show
from split_infer_ros.telemetry.turns import Contest, rotated, take_turns
from split_infer_ros.telemetry.usage import MB, resident_bytes

PIPELINE = "pipeline"
CAMERAS = ("/pipeline/left/image", "/pipeline/right/image")
POOL_SLOTS = 4
MOST_PERIODS = POOL_SLOTS + 3  # a frame waits for a batch, in the ring and for the head
MODERATE, FLOODED = "moderate", "flooded"
LOADS = {MODERATE: 0.9, FLOODED: 3.0}  # of what the pipeline can take
SLOWEST_HZ, FASTEST_HZ = 15.0, 960.0  # of both cameras together, to find that out
FOLLOWS = 0.85  # a pipeline that publishes so much of what comes has not reached its limit
OVERLOAD = 2.0  # so many times more must come than is published, or nothing was shown
CAPACITY_S, SETTLE_S, TURN_S = 1.2, 0.3, 0.6
QUICK_STRETCH_S, FULL_STRETCH_S = 10, 60
REPORTS_S = 0.6  # within which a pipeline reports
LOOK_S = 0.1  # how often memory is looked at
FULL_S = 120.0
PICTURES = 8
IMAGE_MB = 640 * 480 * 3 / MB


class Bench:
    """A pipeline and its cameras.

    Attributes:
        reports: all that the pipeline said of itself.
        ages: of the frames of each load, seconds, turn by turn.
        usage: of the pipeline's process under each load.
        seconds: of the stretch of flood: when each began, the mean memory in MB, and frames that came a published one.
        memory: in MB at seconds of that stretch.
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
        observer.hear(PipelineReport, f"/{PIPELINE}/report", self.reports.append)

    def find_capacity(self) -> None:
        """Count how many frames a second the pipeline can take."""
        rate = SLOWEST_HZ
        while True:
            self._send(rate)
            self.capacity = self._arrivals.during(CAPACITY_S)[0]
            if not FOLLOWS * rate < self.capacity or rate >= FASTEST_HZ:
                return
            rate *= 2

    def turn(self, number: int) -> dict[str, float]:
        """A turn of each load: frames/s, and how busy the stages were."""
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
        """Too many frames for so long."""
        self._send(LOADS[FLOODED] * self.capacity)
        time.sleep(REPORTS_S)  # else the first report would be of the load before
        begin = time.monotonic()
        for _ in range(seconds):
            start, before, first = time.monotonic(), self.reports[-1], len(self.memory)
            while (now := time.monotonic()) < start + 1.0:
                self.memory.append((now - begin, resident_bytes(self._process) / MB))
                time.sleep(LOOK_S)
            after = self.reports[-1]
            come = (after.received - before.received) / max(1, after.published - before.published)
            held = statistics.fmean(held for _, held in self.memory[first:])
            self.seconds.append((start - begin, held, come))
        self._set_cameras(0.0)

    def _send(self, rate: float) -> None:
        """Have both cameras together send so many a second, and wait until they do."""
        self._set_cameras(rate)
        self._arrivals.settle(SETTLE_S)

    def _set_cameras(self, rate: float) -> None:
        for camera in CAMERAS:
            self._feed.rate(camera, rate / len(CAMERAS))


def run(chosen: argparse.Namespace, stretch_s: int) -> Report:
    """Start everything and measure.

    Args:
        chosen: the arguments.
        stretch_s: how long the flood without a pause lasts.
    """
    set_up_middleware()
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        pictures, trace = Path(folder, "pictures"), Path(folder, "trace.json")
        pictures.mkdir()
        for index in range(PICTURES):
            cv2.imwrite(str(pictures / f"{index}.bmp"), draw_scene(0, index).image)
        process = processes.start(
            ["-m", "split_infer_ros.nodes.pipeline"],
            PIPELINE,
            model="mobilenet_v2",
            weights="none",
            score_threshold=0.0,
            max_detections=5,
            source="none",
            image_topics=[*CAMERAS],
            pool_slots=POOL_SLOTS,
            trace=str(trace),
        )
        with Feed(pictures, CAMERAS) as feed, Observer() as observer:
            bench = Bench(observer, feed, Trace(trace), process)
            observer.wait_for_nodes(*CAMERAS, f"/{PIPELINE}/detections")
            bench.find_capacity()
            loads = Contest("loads", bench.turn)
            left = seconds_of_turns(chosen, FULL_S)
            take_turns([loads], max(0.0, left - stretch_s) if chosen.quick else left)
            bench.flood(stretch_s)
            return conclude(loads, bench)


def conclude(loads: Contest, bench: Bench) -> Report:
    """The claims, and what they rest on."""
    rows = rows_of(loads, bench)
    for row in rows:
        show(row)
    flood_hz = LOADS[FLOODED] * bench.capacity
    names = {load: f"{times:g} of what it can take" for load, times in LOADS.items()}
    p99s = {load: [1e3 * p99(ages) for ages in turns] for load, turns in bench.ages.items()}
    return Report(
        "overload",
        claims(loads, bench),
        rows,
        [
            Panel("frames/s published", "1/s", {names[load]: loads.figures[load] for load in LOADS}),
            Panel("age p99 in a turn", "ms", {names[load]: p99s[load] for load in LOADS}),
            Curve(f"memory while {flood_hz:.0f} frames/s come", "s", "MB", {PIPELINE: bench.memory}),
        ],
    )


def claims(loads: Contest, bench: Bench) -> list[Claim]:
    """What was to be shown."""
    _, held, come = zip(*bench.seconds, strict=True)
    stretch_s = len(held)
    grown = mean(np.diff(held)).times(stretch_s)  # memory drifts: its steps are independent samples, its values are not
    flooded, moderate = bench.ages[FLOODED], bench.ages[MODERATE]
    rates = loads.figures[FLOODED]

    def periods(chosen: Sequence[int]) -> float:
        return p99(together(flooded, chosen)) * statistics.fmean(rates[turn] for turn in chosen)

    def later(chosen: Sequence[int]) -> float:
        return p99(together(flooded, chosen)) / p99(together(moderate, chosen))

    late, turns = over_turns(periods, loads.turns), loads.turn_s
    missing = sum(not closes(report) for report in bench.reports)
    return [
        Claim("frames that come, times those published", median(come), "x", OVERLOAD, turn_s=1.0),
        Claim(
            f"memory's growth in {stretch_s} s of flood",
            grown,
            "MB",
            IMAGE_MB,
            Direction.AT_MOST,
            floor=-math.inf,  # memory can be given back
            turn_s=1.0,
        ),
        Claim("reports in which a frame is missing", exact(missing), "", 0, Direction.AT_MOST),
        Claim("age p99 of a published frame, in periods", late, "", MOST_PERIODS, Direction.AT_MOST, turn_s=turns),
        Claim(
            "age p99, times that at 0.9 load", over_turns(later, loads.turns), "x", 2.0, Direction.AT_MOST, turn_s=turns
        ),
    ]


def over_turns(figure: Callable[[Sequence[int]], float], turns: int) -> Estimate:
    """A figure of the numbers of some turns, with its interval: for what is not to be had of each turn alone."""
    return estimate(
        lambda chosen: np.apply_along_axis(lambda numbers: figure([int(number) for number in numbers]), -1, chosen),
        range(turns),
    )


def together(turns: Sequence[Sequence[float]], chosen: Sequence[int]) -> np.ndarray:
    """The samples of the chosen turns."""
    return np.concatenate([turns[turn] for turn in chosen])


def p99(ages: Sequence[float] | np.ndarray) -> float:
    """The 99th percentile."""
    return float(np.percentile(ages, 99))


def rows_of(loads: Contest, bench: Bench) -> list[dict[str, Any]]:
    """One row for each load, one for the stretch of flood, and the last report's counts."""
    rows: list[dict[str, Any]] = []
    for load, times in LOADS.items():
        ages = [1e3 * age for turn in bench.ages[load] for age in turn]
        stages = {stage: loads.figures[f"{load} {stage}"] for stage in ("backbone_busy", "head_busy")}
        found = measured(frames_per_s=loads.figures[load], **stages)
        about = {"age_p50_ms": statistics.median(ages), "age_p99_ms": p99(ages), "age_max_ms": max(ages)}
        row = {"what": load, "camera_hz": times * bench.capacity, **found, **about, "frames": len(ages)}
        rows.append({**row, **bench.usage.row(load)})
    memory = [round(held, 3) for _, held, _ in bench.seconds]
    rows.append({"what": "stretch of flood", "seconds": len(bench.seconds), "memory_mb": memory})
    last = bench.reports[-1]
    dropped = {entry.reason: entry.count for entry in last.dropped}
    rows.append({"what": "ledger", "received": last.received, "published": last.published, "dropped": dropped})
    return rows


def closes(report: PipelineReport) -> bool:
    """Every frame is accounted for."""
    return bool(report.received == report.published + sum(entry.count for entry in report.dropped) + report.in_flight)


def main() -> int:
    """Run the benchmark."""
    chosen = arguments(__doc__).parse_args()
    deliver(run(chosen, QUICK_STRETCH_S if chosen.quick else FULL_STRETCH_S), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
