"""Compares the pipeline with a node written the usual way: frames a second, latency, and the hop between stages.

Both rivals get the same 640x480 images and run the same MobileNetV2 on the same machine in the same run. The model is
untrained, which does not change its speed. Each rival has a process of its own. A camera in a second process sends it
images over DDS, and an observer in a third process receives its detections. The rivals take turns of about a second.
The camera sends to one rival at a time, and the next turn begins once nothing of the last one is in flight. Each claim
is the median over the turns of what the two rivals did in the same turn.

A camera that is too fast for both rivals shows frames a second; the pipeline then takes batches of four. A camera at
half the naive node's rate shows latency at batch size 1, from the image's stamp to the detections' arrival. The same
turns measure the hop from the end of the backbone to the start of the head. Its rival is a message through DDS within
this process, one at a time and at the same pace.

Memory is the most that a rival's process held since its start. A full run has one more rival: the pipeline with the
camera in its own process.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
from _dds_hop import DdsHop
from _feed import Feed
from _process_usage import ProcessUsage
from _ros import Arrivals, Observer, Processes, seconds_of_turns, set_up_middleware
from _rows import in_ms, measured
from _trace import Trace, busy

from split_infer_ros.sources import draw_scene
from split_infer_ros.telemetry.claim import AT_MOST, Claim
from split_infer_ros.telemetry.estimate import ratio
from split_infer_ros.telemetry.picture import Panel
from split_infer_ros.telemetry.report import Report, arguments, deliver, show
from split_infer_ros.telemetry.turns import Contest, rotated, take_turns
from split_infer_ros.telemetry.usage import Usage

PIPELINE, NAIVE = "pipeline", "naive"
WITH_CAMERA = "pipeline_with_camera"  # the camera in the pipeline's own process: images do not go over DDS
DDS = "DDS"
HOP, BACKBONE_BUSY, HEAD_BUSY = "hop", "backbone_busy", "head_busy"
PICTURES = 8
BATCH = 4
SMALL, LARGE = 64 * 1280 * 4, 4_900_000  # bytes
WARM_UP_HZ = 100.0
TOO_FAST = 3.0  # the camera's rate at saturation, as a multiple of the naive node's frames/s
MODERATE = 0.5  # the camera's rate for latency, as a multiple of the same
WARM_UP_S, SATURATED_S, MODERATE_S = 1.0, 0.5, 0.35  # how long a rival is measured in a turn
SATURATED_SETTLE_S, MODERATE_SETTLE_S = 0.2, 0.05  # how long it runs before
MESSAGES = 2  # that go through DDS in a turn, of each size
FULL_S = 300.0


class Bench:
    """Measures the rivals, of which one at a time gets images.

    Attributes:
        usage: the usage of each rival's process, at saturation and at the moderate rate.
        own_usage: the usage of this process while messages go through DDS.
    """

    def __init__(
        self, observer: Observer, feed: Feed, trace: Trace, dds: DdsHop, processes: Mapping[str, Sequence[int]]
    ) -> None:
        self._observer = observer
        self._feed = feed
        self._trace = trace
        self._dds = dds
        self._rivals = list(processes)
        self._arrivals = {name: Arrivals(observer, f"/{name}/detections") for name in processes}
        self._batches: dict[str, int] = {}
        self._capacity = 0.0
        self.usage = {contest: ProcessUsage(processes) for contest in ("saturation", "latency")}
        self.own_usage = Usage()

    def warm_up(self) -> None:
        """Measures the naive node's frames/s."""
        self._set_batch(PIPELINE, 1)
        self._capacity = self._measure(
            "saturation", NAIVE, rate=WARM_UP_HZ, seconds=WARM_UP_S, settle_s=SATURATED_SETTLE_S
        )[0]

    def saturate(self, turn: int) -> dict[str, float]:
        """Returns each rival's frames/s in a turn with a camera that is too fast."""
        found = {}
        for rival in rotated(self._rivals, turn):
            if rival != NAIVE:
                self._set_batch(rival, BATCH)
            rate = TOO_FAST * self._capacity
            found[rival], _, shares = self._measure(
                "saturation", rival, rate=rate, seconds=SATURATED_S, settle_s=SATURATED_SETTLE_S
            )
            if rival == PIPELINE:
                found |= shares
        return found

    def pace(self, turn: int) -> dict[str, float]:
        """Returns each rival's median latency and the hop in a turn with a moderate camera, in seconds."""
        found = {}
        rate = MODERATE * self._capacity
        self._set_batch(PIPELINE, 1)
        for rival in rotated((PIPELINE, NAIVE), turn):
            _, found[rival], shares = self._measure(
                "latency", rival, rate=rate, seconds=MODERATE_S, settle_s=MODERATE_SETTLE_S
            )
            if rival == PIPELINE:
                found |= shares
        with self.own_usage.of(DDS):
            for size in (SMALL, LARGE):
                found[f"{DDS} {size}"] = self._dds.median(size, MESSAGES, 1 / rate)
        return found

    def _set_batch(self, rival: str, size: int) -> None:
        """Sets a pipeline's batch size. With batches, the middleware drops the frames that do not fit."""
        if self._batches.get(rival) != size:
            policy = "block" if size > 1 else "latest"
            self._observer.set(f"/{rival}/backbone", batch_size=size, drop_policy=policy)
            self._batches[rival] = size

    def _measure(
        self, contest: str, rival: str, *, rate: float, seconds: float, settle_s: float
    ) -> tuple[float, float, dict[str, float]]:
        """Returns frames/s and the median latency in seconds; for the pipeline also its busy shares and its hop."""
        arrivals = self._arrivals[rival]
        self._set_camera(rival, rate)
        arrivals.settle(settle_s)
        begin = time.monotonic()
        with self.usage[contest].of(rival):
            frames, ages = arrivals.during(seconds)
        end = time.monotonic()
        self._set_camera(rival, 0.0)
        arrivals.wait_for_quiet()
        shares = {}
        if rival == PIPELINE:
            batches = self._trace.between(begin, end)
            shares = {HOP: statistics.median(batch.hop_s for batch in batches), **busy(batches, begin, end)}
        return frames, statistics.median(ages), shares

    def _set_camera(self, rival: str, rate: float) -> None:
        if rival != WITH_CAMERA:
            self._feed.rate(f"/{rival}/image", rate)
        elif rate:
            self._observer.set(camera_of(rival), rate_hz=rate)
            self._observer.transition(camera_of(rival), "activate")
        else:
            self._observer.transition(camera_of(rival), "deactivate")


def run(chosen: argparse.Namespace) -> Report:
    """Starts all processes and measures."""
    set_up_middleware()
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        pictures, trace = Path(folder, "pictures"), Path(folder, "trace.json")
        draw_pictures(pictures)
        process_ids = start(processes, trace, f"folder:{pictures}", with_camera=not chosen.quick)
        topics = [f"/{rival}/image" for rival in (PIPELINE, NAIVE)]
        with Feed(pictures, topics) as feed, Observer() as observer, DdsHop((SMALL, LARGE)) as dds:
            bench = Bench(observer, feed, Trace(trace), dds, process_ids)
            observer.wait_for_nodes(*topics)
            for rival in process_ids:
                observer.wait_for_nodes(f"/{rival}/detections")
            if WITH_CAMERA in process_ids:
                observer.transition(camera_of(WITH_CAMERA), "deactivate")  # until its first turn
            bench.warm_up()
            contests = [
                Contest("saturation", bench.saturate, throughput_claims),
                Contest("latency", bench.pace, latency_claims),
            ]
            take_turns(contests, seconds_of_turns(chosen, FULL_S))
            return conclude(*contests, bench)


def start(processes: Processes, trace: Path, source: str, with_camera: bool) -> dict[str, list[int]]:
    """Starts the rivals; returns their process ids."""
    model = {"model": "mobilenet_v2", "weights": "none", "score_threshold": 0.0, "max_detections": 5}
    pipeline = ["-m", "split_infer_ros.nodes.pipeline"]
    process_ids = {
        PIPELINE: [processes.start(pipeline, PIPELINE, **model, source="none", trace=str(trace))],
        NAIVE: [processes.start([str(Path(__file__).with_name("_naive_node.py"))], NAIVE)],
    }
    if with_camera:
        process_ids[WITH_CAMERA] = [processes.start(pipeline, WITH_CAMERA, **model, source=source)]
    return process_ids


def throughput_claims(contest: Contest) -> list[Claim]:
    """Returns the claims about frames a second."""
    faster = ratio(contest.figures[PIPELINE], contest.figures[NAIVE])
    return [Claim("frames/s, times the naive node's", faster, "x", 2.0, turn_s=contest.turn_s)]


def latency_claims(contest: Contest) -> list[Claim]:
    """Returns the claims about latency and the hop."""
    figures, turn_s = contest.figures, contest.turn_s
    sooner = ratio(figures[PIPELINE], figures[NAIVE])
    small, large = (ratio(figures[f"{DDS} {size}"], figures[HOP]) for size in (SMALL, LARGE))
    return [
        Claim("latency p50, part of the naive node's", sooner, "x", 0.75, AT_MOST, turn_s=turn_s),
        Claim("hop, times faster than 64x1280 floats by DDS", small, "x", 5.0, turn_s=turn_s),
        Claim("hop, times faster than 4.9 MB by DDS", large, "x", 30.0, turn_s=turn_s),
    ]


def conclude(saturation: Contest, latency: Contest, bench: Bench) -> Report:
    """Returns the report: the claims, and the rows and figures behind them."""
    rows = rows_of(saturation, latency, bench)
    for row in rows:
        show(row)
    fast, moderate = saturation.figures, latency.figures
    rivals = [rival for rival in (PIPELINE, NAIVE, WITH_CAMERA) if rival in fast]
    dds = {f"{DDS} {size / 1e6:.2g} MB": moderate[f"{DDS} {size}"] for size in (SMALL, LARGE)}
    return Report(
        "pipeline",
        [*throughput_claims(saturation), *latency_claims(latency)],
        rows,
        [
            Panel("frames/s, camera too fast", "1/s", {rival: fast[rival] for rival in rivals}),
            Panel("latency p50, batch 1", "ms", {rival: in_ms(moderate[rival]) for rival in (PIPELINE, NAIVE)}),
            Panel("hop p50", "ms", {name: in_ms(values) for name, values in {PIPELINE: moderate[HOP], **dds}.items()}),
        ],
    )


def rows_of(saturation: Contest, latency: Contest, bench: Bench) -> list[dict[str, Any]]:
    """Returns one row for each rival in each contest."""
    rows: list[dict[str, Any]] = []
    for contest in (saturation, latency):
        figures = contest.figures
        stages = {name: figures[name] for name in (BACKBONE_BUSY, HEAD_BUSY)}
        for rival in (PIPELINE, NAIVE, WITH_CAMERA):
            if rival in figures:
                own = stages if rival == PIPELINE else {}
                if contest is saturation:
                    found = measured(frames_per_s=figures[rival], **own)
                else:
                    found = measured(latency_p50_ms=in_ms(figures[rival]), **own)
                rows.append({"what": contest.name, "rival": rival, **found, **bench.usage[contest.name].row(rival)})
    hop = measured(hop_p50_ms=in_ms(latency.figures[HOP]))
    rows.append({"what": HOP, "rival": PIPELINE, **hop})
    for size in (SMALL, LARGE):
        hop = measured(hop_p50_ms=in_ms(latency.figures[f"{DDS} {size}"]))
        rows.append({"what": HOP, "rival": DDS, "bytes": size, **hop, **bench.own_usage.row(DDS)})
    return rows


def camera_of(rival: str) -> str:
    """Returns the name of the camera's node in the rival's own process."""
    return f"/{rival}/camera"


def draw_pictures(folder: Path) -> None:
    """Writes the images of the comparison to a new folder."""
    folder.mkdir()
    for index in range(PICTURES):
        cv2.imwrite(str(folder / f"{index}.bmp"), draw_scene(0, index).image)


def main() -> int:
    """Runs the benchmark."""
    chosen = arguments(__doc__).parse_args()
    deliver(run(chosen), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
