"""Measures what two cameras that are three times faster than the pipeline cost, apart from the frames it must drop.

The cameras send 640x480 images over DDS, from a process of their own, to a MobileNetV2. The model is untrained, which
does not change its speed. First the benchmark counts how many frames the pipeline can take. Then two loads take turns
of a second: 0.9 and three times that rate. An age is the time from an image's stamp to its detections' arrival at an
observer outside. The 99th percentile is taken among all frames of a load; its interval is over turns.

Finally, a stretch of flood without a pause shows whether memory grows. The operating system says how much memory the
pipeline's process holds, and a line of least squares goes through the means of its seconds. In the same seconds, the
pipeline counts how many frames come for each that is published. Every report of the run is checked for missing frames.
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
from split_infer_ros.telemetry.claim import AT_MOST, Claim
from split_infer_ros.telemetry.estimate import Estimate, Samples, estimate, exact, median
from split_infer_ros.telemetry.picture import Curve, Panel
from split_infer_ros.telemetry.report import Report, arguments, deliver, show
from split_infer_ros.telemetry.turns import Contest, rotated, take_turns
from split_infer_ros.telemetry.usage import MB, resident_bytes

PIPELINE = "pipeline"
CAMERAS = ("/pipeline/left/image", "/pipeline/right/image")
POOL_SLOTS = 4
MAX_PERIODS = POOL_SLOTS + 3  # a frame waits for a batch, in the slot pool and for the head
MODERATE, FLOODED = "moderate", "flooded"
LOADS = {MODERATE: 0.9, FLOODED: 3.0}  # as multiples of what the pipeline can take
MIN_HZ, MAX_HZ = 15.0, 960.0  # the rates of both cameras together that are tried to find that out
FOLLOWS = 0.85  # a pipeline that publishes this part of what comes has not reached its limit
OVERLOAD = 2.0  # what comes must be this multiple of what is published, else there was no overload
CAPACITY_S, SETTLE_S, TURN_S = 1.2, 0.3, 0.6
QUICK_STRETCH_S, FULL_STRETCH_S = 10, 60
REPORT_S = 0.6  # at most between two reports
MEMORY_PERIOD_S = 0.1  # between two readings of the memory
FULL_S = 120.0
PICTURES = 8
IMAGE_MB = 640 * 480 * 3 / MB


class Bench:
    """Measures a pipeline under the load of its cameras.

    Attributes:
        reports: all reports of the pipeline.
        ages: the ages of the frames of each load, in seconds, turn by turn.
        usage: the usage of the pipeline's process under each load.
        capacity: the frames a second that the pipeline can take; NaN before it was measured.
        seconds: for each second of the flood its start, the mean memory in MB, and frames that came a published one.
        memory: pairs of a time of the flood in seconds and the memory in MB.
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
        """Counts how many frames a second the pipeline can take."""
        rate = MIN_HZ
        while True:
            self._send(rate)
            self.capacity = self._arrivals.during(CAPACITY_S)[0]
            if not FOLLOWS * rate < self.capacity or rate >= MAX_HZ:
                return
            rate *= 2

    def turn(self, number: int) -> dict[str, float]:
        """Returns the frames/s of each load in a turn, and how busy the stages were."""
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
        """Sends too many frames for so many seconds."""
        self._send(LOADS[FLOODED] * self.capacity)
        time.sleep(REPORT_S)  # else the first report would be of the previous load
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

    def _send(self, rate: float) -> None:
        """Has both cameras together send at this rate, and waits until they do."""
        self._set_cameras(rate)
        self._arrivals.settle(SETTLE_S)

    def _set_cameras(self, rate: float) -> None:
        for camera in CAMERAS:
            self._feed.rate(camera, rate / len(CAMERAS))


def run(chosen: argparse.Namespace, stretch_s: int) -> Report:
    """Starts all processes and measures.

    Args:
        chosen: the arguments of the command line.
        stretch_s: how long the flood without a pause lasts, in seconds.
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
    """Returns the report: the claims, and the rows and figures behind them."""
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
    """Returns the claims."""
    starts, held, come = zip(*bench.seconds, strict=True)
    stretch_s = len(starts)
    grown = estimate(slope, starts, held).times(stretch_s)
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
            AT_MOST,
            floor=-math.inf,  # memory can be given back
            turn_s=1.0,
        ),
        Claim("reports in which a frame is missing", exact(missing), "", 0, AT_MOST),
        Claim("age p99 of a published frame, in periods", late, "", MAX_PERIODS, AT_MOST, turn_s=turns),
        Claim("age p99, times that at 0.9 load", over_turns(later, loads.turns), "x", 2.0, AT_MOST, turn_s=turns),
    ]


def slope(times: Samples, values: Samples) -> Any:
    """Returns the slope of the line of least squares, along the last axis."""
    about = times - times.mean(-1, keepdims=True)
    return (about * values).sum(-1) / (about * about).sum(-1)


def over_turns(figure: Callable[[Sequence[int]], float], turns: int) -> Estimate:
    """Returns a figure with its interval over turns, where a single turn has no such figure.

    Args:
        figure: computes it from the numbers of some turns.
        turns: how many turns there were.
    """
    return estimate(
        lambda chosen: np.apply_along_axis(lambda numbers: figure([int(number) for number in numbers]), -1, chosen),
        range(turns),
    )


def together(turns: Sequence[Sequence[float]], chosen: Sequence[int]) -> np.ndarray:
    """Returns the samples of the chosen turns."""
    return np.concatenate([turns[turn] for turn in chosen])


def p99(ages: Sequence[float] | np.ndarray) -> float:
    """Returns the 99th percentile."""
    return float(np.percentile(ages, 99))


def rows_of(loads: Contest, bench: Bench) -> list[dict[str, Any]]:
    """Returns one row for each load, one for the stretch of flood, and the last report's counts."""
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
    """Returns whether every frame of a report is accounted for."""
    return bool(report.received == report.published + sum(entry.count for entry in report.dropped) + report.in_flight)


def main() -> int:
    """Runs the benchmark."""
    chosen = arguments(__doc__).parse_args()
    deliver(run(chosen, QUICK_STRETCH_S if chosen.quick else FULL_STRETCH_S), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
