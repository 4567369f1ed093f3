"""The pipeline against a node written the usual way: frames a second, latency, and the hop between the stages.

The same 640x480 images, the same MobileNetV2 (untrained: its speed is a trained one's), the same machine, the same
run. Each rival runs in a process of its own, fed over DDS by a camera in another, and is heard by an observer in a
third; they take turns, round by round, and each claim is the median over the rounds of what the two did in the same
round. A camera that is too fast for both shows frames a second; one at half of what the naive node can do shows
latency, from the image's stamp to the detections' arrival. The hop, from the backbone's publish to the head's start,
is compared with features sent as a message through DDS, within this process, one at a time and at the same pace.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
from _dds_hop import dds_hop
from _ros import Arrivals, Observer, Processes, own_domain

from split_infer_ros.msg import PipelineReport
from split_infer_ros.sources import draw_scene
from split_infer_ros.telemetry.report import AT_MOST, Claim, Panel, Report, arguments, deliver

PIPELINE, NAIVE = "pipeline", "naive"
INSIDE = "pipeline_with_camera"  # in its own process, which saves the way over DDS
RIVALS = (PIPELINE, NAIVE, INSIDE)
FEED = "feed"  # the name of a camera that is a process of its own
PROFILE = Path(__file__).parents[1] / "config" / "fastdds.xml"  # without it, all rivals lose images on their way
PICTURES = 8
BATCH = 4
SETTLE_S = 1.0
WARM_UP_HZ = 100.0
TOO_FAST = 3.0  # the camera's rate at saturation, in units of the naive node's frames/s
MODERATE = 0.5  # and for latency
SMALL, LARGE = 64 * 1280 * 4, 4_900_000  # bytes


@dataclass
class Bench:
    """The rivals, and what was measured of them.

    Attributes:
        seconds: how long each measurement takes.
        rows: all measurements.
        hops: medians of the pipeline's hop over its last seconds, in seconds, as it reports them.
    """

    observer: Observer
    seconds: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    hops: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._arrivals = {name: Arrivals(self.observer, f"/{name}/detections") for name in RIVALS}
        self.observer.hear(PipelineReport, f"/{PIPELINE}/report", self._hear_report)

    def _hear_report(self, report: PipelineReport) -> None:
        if not math.isnan(report.hop_p50_ms):
            self.hops.append(report.hop_p50_ms / 1e3)

    def set_batch(self, rival: str, size: int) -> None:
        """Have a pipeline take so many frames at once; more than it can take is left to the middleware to drop."""
        self.observer.set(f"/{rival}/backbone", batch_size=size, drop_policy="block" if size > 1 else "latest")

    def measure(self, what: str, rival: str, turn: int, rate: float) -> tuple[float, float]:
        """Let the rival's camera run at ``rate`` (1/s); returns frames/s and the median latency in seconds."""
        camera = camera_of(rival)
        self.observer.set(camera, rate_hz=rate)
        self.observer.transition(camera, "activate")
        self._arrivals[rival].during(SETTLE_S)
        frames, ages = self._arrivals[rival].during(self.seconds)
        self.observer.transition(camera, "deactivate")
        latency = statistics.median(ages)
        row = {"what": what, "rival": rival, "round": turn, "camera_hz": rate, "frames_per_s": frames}
        self.rows.append({**row, "latency_p50_ms": 1e3 * latency})
        print(f"{what} {turn}, {rival}: {frames:.1f} frames/s, latency p50 {1e3 * latency:.1f} ms", flush=True)
        return frames, latency

    def measure_dds(self, size: int, turn: int, messages: int, rate: float) -> float:
        """The median seconds that features of ``size`` bytes take through DDS."""
        seconds = dds_hop(size, messages, 1 / rate)
        self.rows.append({"what": "hop", "rival": "DDS", "round": turn, "bytes": size, "hop_p50_ms": 1e3 * seconds})
        print(f"hop {turn}, {size:,} bytes by DDS: {1e3 * seconds:.2f} ms", flush=True)
        return seconds


def run(rounds: int, seconds: float, messages: int) -> Report:
    """Start everything and measure.

    Args:
        rounds: how often the rivals take turns.
        seconds: how long each measurement takes.
        messages: sent through DDS, of each size, in each round.
    """
    os.environ["ROS_DOMAIN_ID"] = str(own_domain())
    os.environ.setdefault("FASTDDS_DEFAULT_PROFILES_FILE", str(PROFILE))
    with tempfile.TemporaryDirectory() as folder, Processes() as processes, Observer() as observer:
        draw_pictures(Path(folder))
        start(processes, f"folder:{folder}")
        bench = Bench(observer, seconds)
        for rival in RIVALS:
            observer.wait_for_nodes(f"/{rival}/image", f"/{rival}/detections")
            observer.transition(camera_of(rival), "deactivate")  # until its turn
        return compare(bench, rounds, messages)


def start(processes: Processes, source: str) -> None:
    """Start the rivals and their cameras."""
    model = {"model": "mobilenet_v2", "weights": "none", "score_threshold": 0.0, "max_detections": 5}
    pipeline = ["-m", "split_infer_ros.nodes.pipeline"]
    processes.start(pipeline, PIPELINE, **model, source="none")
    processes.start(pipeline, INSIDE, **model, source=source)
    processes.start([str(Path(__file__).with_name("_naive_node.py"))], NAIVE)
    for rival in (PIPELINE, NAIVE):
        processes.start(["-m", "split_infer_ros.nodes.camera"], rival, name=FEED, source=source)


def compare(bench: Bench, rounds: int, messages: int) -> Report:
    """Let the rivals take turns, and draw the conclusions."""
    capacity, _ = bench.measure("warm-up", NAIVE, 0, WARM_UP_HZ)
    frames: dict[str, list[float]] = {PIPELINE: [], NAIVE: []}
    latency: dict[str, list[float]] = {PIPELINE: [], NAIVE: []}
    dds: dict[int, list[float]] = {SMALL: [], LARGE: []}
    for turn in range(1, rounds + 1):
        bench.set_batch(PIPELINE, BATCH)
        for rival in frames:
            frames[rival].append(bench.measure("saturation", rival, turn, TOO_FAST * capacity)[0])
        bench.set_batch(PIPELINE, 1)
        for rival in latency:
            latency[rival].append(bench.measure("latency", rival, turn, MODERATE * capacity)[1])
        for size, hops in dds.items():
            hops.append(bench.measure_dds(size, turn, messages, MODERATE * capacity))
    bench.set_batch(INSIDE, BATCH)
    bench.measure("saturation", INSIDE, 1, TOO_FAST * capacity)
    faster, sooner = ratio(frames[PIPELINE], frames[NAIVE]), ratio(latency[PIPELINE], latency[NAIVE])
    hop = statistics.median(bench.hops)
    bench.rows.append({"what": "hop", "rival": PIPELINE, "hop_p50_ms": 1e3 * hop})
    return Report(
        "pipeline",
        [
            Claim("frames/s, times the naive node's", faster, "x", 2.0),
            Claim("latency p50, part of the naive node's", sooner, "x", 0.75, AT_MOST),
            Claim("hop, times faster than 64x1280 floats by DDS", statistics.median(dds[SMALL]) / hop, "x", 5.0),
            Claim("hop, times faster than 4.9 MB by DDS", statistics.median(dds[LARGE]) / hop, "x", 30.0),
        ],
        bench.rows,
        [
            Panel("frames/s, camera too fast", "1/s", frames),
            Panel("latency p50, batch 1", "ms", {rival: in_ms(values) for rival, values in latency.items()}),
            Panel(
                "hop p50",
                "ms",
                {"pipeline": in_ms(bench.hops), "DDS 0.33 MB": in_ms(dds[SMALL]), "DDS 4.9 MB": in_ms(dds[LARGE])},
            ),
        ],
    )


def camera_of(rival: str) -> str:
    """The camera's node."""
    return f"/{rival}/{'camera' if rival == INSIDE else FEED}"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over the rounds of the two's ratio in the same round."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def in_ms(seconds: Sequence[float]) -> list[float]:
    """Seconds as milliseconds."""
    return [1e3 * value for value in seconds]


def draw_pictures(folder: Path) -> None:
    """Fill a folder with the images of the comparison."""
    for index in range(PICTURES):
        cv2.imwrite(str(folder / f"{index}.bmp"), draw_scene(0, index).image)


def main() -> int:
    """Run the benchmark."""
    chosen = arguments(__doc__).parse_args()
    report = run(3, 4.0, 30) if chosen.quick else run(9, 10.0, 100)
    deliver(report, chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
