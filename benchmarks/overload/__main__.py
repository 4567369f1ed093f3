"""Measures the cost of two cameras that are three times faster than the pipeline, apart from the frames it must drop.

The cameras send 640x480 images over DDS, from a process of their own, to a MobileNetV2. The model is untrained, which
does not change its speed. First the benchmark measures how many frames per second the pipeline can process. Then two
loads take turns of a second: 0.9 and three times that rate. An age is the time from an image's stamp to the arrival of
its detections at an observer outside. The 99th percentile is taken over all frames of a load, its interval over turns.

Finally, a stretch of flood without a pause shows whether memory grows. The operating system says how much memory the
pipeline's process holds, and the growth is the mean step from one second to the next. In the same seconds, the pipeline
counts how many frames come for each that is published. When the cameras have stopped, no frame may be in flight: a
lost frame would stay in flight for ever. It is no claim that the received frames are the sum of all other counts,
because the pipeline itself counts both.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import exact, mean, median, over_turns, p99, together
from benchmarks.common.picture import Curve, Panel
from benchmarks.common.report import Report, arguments, deliver, show
from benchmarks.common.rows import measured
from benchmarks.common.turns import Contest, take_turns
from benchmarks.common.usage import MB
from benchmarks.overload.turns import (
    CAMERAS,
    FLOODED,
    LOADS,
    MODERATE,
    PIPELINE,
    Bench,
)
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Observer
from benchmarks.ros.processes import Processes, seconds_of_turns, set_up_middleware
from benchmarks.ros.trace import Trace
from split_infer_ros.sources import draw_scene

POOL_SLOTS = 4
MAX_PERIODS = 5  # in periods: one for a lane to be free, two on a lane beside another batch, one or two in the head
OVERLOAD = 2.0  # with fewer frames received per published one, there was no overload
QUICK_STRETCH_S, FULL_STRETCH_S = 10, 60
FULL_S = 120.0
PICTURES = 8
IMAGE_MB = 640 * 480 * 3 / MB


def run(chosen: argparse.Namespace, stretch_s: int) -> Report:
    """Starts all processes, measures, and returns the report.

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
            ["-m", "split_infer_ros", "pipeline"],
            PIPELINE,
            model="mobilenet_v2",
            weights="none",
            improve="before_start",
            precision="fp32",
            objective="throughput",
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
    """Returns the claims about the flood, about frames that did not come back, and about ages."""
    _, held, come = zip(*bench.seconds, strict=True)
    stretch_s = len(held)
    grown = mean(np.diff(held)).times(stretch_s)  # memory drifts, so only its steps are independent samples
    flooded, moderate = bench.ages[FLOODED], bench.ages[MODERATE]
    rates = loads.figures[FLOODED]

    def periods(chosen: Sequence[int]) -> float:
        return p99(together(flooded, chosen)) * statistics.fmean(rates[turn] for turn in chosen)

    def later(chosen: Sequence[int]) -> float:
        return p99(together(flooded, chosen)) / p99(together(moderate, chosen))

    late, turns = over_turns(periods, loads.turns), loads.turn_s
    return [
        Claim("frames that come, times those published", median(come), "x", OVERLOAD, turn_s=1.0),
        Claim(
            f"memory's growth in {stretch_s} s of flood",
            grown,
            "MB",
            IMAGE_MB,
            Direction.AT_MOST,
            floor=-math.inf,  # memory can shrink
            turn_s=1.0,
        ),
        Claim("frames that never came back", exact(bench.reports[-1].in_flight), "", 0, Direction.AT_MOST),
        Claim("age p99 of a published frame, in periods", late, "", MAX_PERIODS, Direction.AT_MOST, turn_s=turns),
        Claim(
            "age p99, times that at 0.9 load", over_turns(later, loads.turns), "x", 2.0, Direction.AT_MOST, turn_s=turns
        ),
    ]


def rows_of(loads: Contest, bench: Bench) -> list[dict[str, Any]]:
    """Returns a row for each load, a row for the stretch of flood, and a row with the last report's counts."""
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
    counts = {"received": last.received, "published": last.published, "in_flight": last.in_flight}
    rows.append({"what": "ledger", **counts, "dropped": dropped})
    return rows


def main() -> int:
    """Runs the benchmark."""
    chosen = arguments(__doc__).parse_args()
    deliver(run(chosen, QUICK_STRETCH_S if chosen.quick else FULL_STRETCH_S), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
