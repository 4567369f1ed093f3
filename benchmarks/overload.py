"""Two cameras that together are three times faster than the pipeline: what that costs beside the frames it must drop.

The cameras are processes of their own and send 640x480 images over DDS to a MobileNetV2 (untrained: its speed is a
trained one's). First as many frames as the pipeline can take are counted; then it runs at 0.9 of that, then at three
times as much, then at 0.9 again, so that both loads see the same machine. A frame's age is taken from the image's stamp
to the detections' arrival at an observer outside. Memory is what the operating system says that the pipeline holds.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from _ros import Arrivals, Observer, Processes, own_domain

from split_infer_ros.msg import PipelineReport
from split_infer_ros.nodes.process import PROFILE_VARIABLES
from split_infer_ros.sources import draw_scene
from split_infer_ros.telemetry.report import AT_MOST, Claim, Panel, Report, arguments, deliver

PROFILE = Path(__file__).parents[1] / "config" / "fastdds.xml"
PIPELINE = "pipeline"
CAMERAS = ("left", "right")
RING_SLOTS = 4
MOST_PERIODS = RING_SLOTS + 3  # a frame waits for a batch, in the ring and for the head
MODERATE, TOO_FAST = 0.9, 3.0  # of what the pipeline can take
SLOWEST_HZ, FASTEST_HZ = 15.0, 960.0  # of both cameras together, to find that out
FOLLOWS = 0.9  # a pipeline that publishes so much of what comes has not reached its limit
OVERLOAD = 2.0  # so many times more must come than is published, or nothing was shown
SETTLE_S = 3.0
WINDOWS = 6  # of a measurement, each a sample in the picture
PICTURES = 8
IMAGE_MB = 640 * 480 * 3 / 1e6
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


@dataclass(frozen=True)
class Load:
    """What was seen under one load.

    Attributes:
        frames: published a second, in each window.
        ages: of the published frames in each window, seconds.
        memory: of the pipeline's process over time, (seconds, MB).
    """

    frames: list[float] = field(default_factory=list)
    ages: list[list[float]] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)

    @property
    def all_ages(self) -> list[float]:
        """Of all windows."""
        return [age for window in self.ages for age in window]

    @property
    def p99s(self) -> list[float]:
        """Of each window, milliseconds."""
        return [1e3 * float(np.percentile(window, 99)) for window in self.ages]

    def growth(self) -> tuple[float, float]:
        """By how many MB the memory grew, by least squares, and three standard deviations about that line."""
        times, held = np.array(self.memory).T
        slope, start = np.polyfit(times, held, 1)
        return float(slope * (times[-1] - times[0])), 3 * float(np.std(held - (slope * times + start)))


class Bench:
    """A pipeline and its cameras.

    Attributes:
        reports: all that the pipeline said of itself.
    """

    def __init__(self, observer: Observer, pid: int) -> None:
        self.reports: list[PipelineReport] = []
        self._observer = observer
        self._pages = Path(f"/proc/{pid}/statm")
        self._arrivals = Arrivals(observer, f"/{PIPELINE}/detections")
        observer.hear(PipelineReport, f"/{PIPELINE}/report", self.reports.append)

    def run(self, rate: float, seconds: float, load: Load) -> Load:
        """Let the cameras together run at ``rate`` (1/s), and add what is seen to ``load``."""
        for camera in CAMERAS:
            self._observer.set(f"/{PIPELINE}/{camera}", rate_hz=rate / len(CAMERAS))
        self._arrivals.during(SETTLE_S)
        done = threading.Event()
        watching = threading.Thread(target=self._watch_memory, args=(done, load))
        watching.start()
        for _ in range(WINDOWS):
            frames, ages = self._arrivals.during(seconds / WINDOWS)
            load.frames.append(frames)
            load.ages.append(ages)
        done.set()
        watching.join()
        print(
            f"{rate:.1f} frames/s come: {statistics.mean(load.frames):.1f} are published, age p50 "
            f"{1e3 * statistics.median(load.all_ages):.1f} ms, p99 {statistics.median(load.p99s):.1f} ms",
            flush=True,
        )
        return load

    def capacity(self, seconds: float) -> float:
        """Frames a second that the pipeline can take."""
        rate = SLOWEST_HZ
        while (published := statistics.mean(self.run(rate, seconds, Load()).frames)) > FOLLOWS * rate < FASTEST_HZ:
            rate *= 2
        return published

    def _watch_memory(self, done: threading.Event, load: Load) -> None:
        while not done.wait(0.2):
            resident = int(self._pages.read_text().split()[1])
            load.memory.append((time.monotonic(), resident * PAGE_MB))


def run(seconds: float) -> Report:
    """Start everything and measure.

    Args:
        seconds: how long there are too many frames.
    """
    os.environ["ROS_DOMAIN_ID"] = str(own_domain())
    os.environ.setdefault(PROFILE_VARIABLES[0], str(PROFILE))
    with tempfile.TemporaryDirectory() as folder, Processes() as processes, Observer() as observer:
        for index in range(PICTURES):
            cv2.imwrite(str(Path(folder, f"{index}.bmp")), draw_scene(0, index).image)
        topics = [f"{camera}/image" for camera in CAMERAS]
        model = {"model": "mobilenet_v2", "weights": "none", "score_threshold": 0.0, "max_detections": 5}
        pid = processes.start(
            ["-m", "split_infer_ros.nodes.pipeline"],
            PIPELINE,
            **model,
            source="none",
            image_topics=topics,
            ring_slots=RING_SLOTS,
        )
        for camera in CAMERAS:
            processes.start(
                ["-m", "split_infer_ros.nodes.camera"],
                PIPELINE,
                name=camera,
                remap={"image": f"{camera}/image"},
                source=f"folder:{folder}",
                rate_hz=1.0,
            )
        bench = Bench(observer, pid)
        observer.wait_for_nodes(*(f"/{PIPELINE}/{topic}" for topic in topics), f"/{PIPELINE}/detections")
        capacity = bench.capacity(seconds / 8)
        moderate, flooded = Load(), Load()
        bench.run(MODERATE * capacity, seconds / 2, moderate)
        bench.run(TOO_FAST * capacity, seconds, flooded)
        bench.run(MODERATE * capacity, seconds / 2, moderate)
        return conclude(capacity, moderate, flooded, bench.reports)


def conclude(capacity: float, moderate: Load, flooded: Load, reports: Sequence[PipelineReport]) -> Report:
    """Draw the conclusions."""
    loads = {f"{MODERATE:g} of the capacity": moderate, f"{TOO_FAST:g} times": flooded}
    period = 1 / statistics.mean(flooded.frames)
    growth, noise = flooded.growth()
    p99, moderate_p99 = (float(np.percentile(load.all_ages, 99)) for load in (flooded, moderate))
    last = reports[-1]
    dropped = {entry.reason: entry.count for entry in last.dropped}
    rows: list[dict[str, Any]] = [
        {
            "what": what,
            "camera_hz": times * capacity,
            "frames_per_s": statistics.mean(load.frames),
            "age_p50_ms": 1e3 * statistics.median(load.all_ages),
            "age_p99_ms": 1e3 * float(np.percentile(load.all_ages, 99)),
            "age_max_ms": 1e3 * max(load.all_ages),
            "memory_mb": [round(held, 3) for _, held in load.memory][:: max(1, len(load.memory) // 100)],
        }
        for what, times, load in (("moderate", MODERATE, moderate), ("flooded", TOO_FAST, flooded))
    ]
    rows.append({"what": "ledger", "received": last.received, "published": last.published, "dropped": dropped})
    return Report(
        "overload",
        [
            Claim("frames that come, times those published", TOO_FAST * capacity * period, "x", OVERLOAD),
            Claim("memory's growth while flooded", growth, "MB", IMAGE_MB + noise, AT_MOST),
            Claim("reports in which a frame is missing", sum(not closes(report) for report in reports), "", 0, AT_MOST),
            Claim("age p99 of a published frame, in periods", p99 / period, "", MOST_PERIODS, AT_MOST),
            Claim("age p99, times that at 0.9 load", p99 / moderate_p99, "x", 2.0, AT_MOST),
        ],
        rows,
        [
            Panel("frames/s published", "1/s", {name: load.frames for name, load in loads.items()}),
            Panel("age p99", "ms", {name: load.p99s for name, load in loads.items()}),
            Panel("memory", "MB", {name: [held for _, held in load.memory] for name, load in loads.items()}),
        ],
    )


def closes(report: PipelineReport) -> bool:
    """Every frame is accounted for."""
    return bool(report.received == report.published + sum(entry.count for entry in report.dropped) + report.in_flight)


def main() -> int:
    """Run the benchmark."""
    chosen = arguments(__doc__).parse_args()
    deliver(run(16.0 if chosen.quick else 60.0), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
