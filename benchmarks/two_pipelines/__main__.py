"""Two pipelines share the cores, each with a camera that is too fast. Measures the age and number of their results.

Each pipeline is a process of its own with a detector of the size of YOLOv8n. A camera in another process sends images
to both, and an observer in this process receives the detections. The age of a result
is the time from the image's stamp to the arrival of its detections. In each turn, both pipelines have one setting after
the other, in changing order:

- `throughput`: `objective: throughput`, so that a pipeline may compute two batches at a time.
- `latency`: `objective: latency`, so that no batch runs beside another one of its process.
- `alone`: the same as `throughput`, with images for the first pipeline only.

A frame's age covers its whole way. If computing holds up the threads that read and publish, the results of `throughput`
are older than those of `latency`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import ratio
from benchmarks.common.picture import Panel
from benchmarks.common.report import Report, run_command, show
from benchmarks.common.rows import in_ms, measured
from benchmarks.common.turns import Contest, rotated, take_turns
from benchmarks.common.yolo_sized import export, make_network
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Arrivals, Observer
from benchmarks.ros.pictures import draw_pictures
from benchmarks.ros.processes import Processes, seconds_of_turns, set_up_middleware
from benchmarks.ros.together import Together

THROUGHPUT, LATENCY, ALONE = RIVALS = ("throughput", "latency", "alone")
OBJECTIVES = {THROUGHPUT: "throughput", LATENCY: "latency", ALONE: "throughput"}
PIPELINES = ("left", "right")
RATE_HZ = 40.0  # each camera's rate; more than both pipelines can take
SETTLE_S, MEASURED_S = 3.0, 4.0  # long enough that a pipeline notices the other one
FULL_S = 400.0


class Bench:
    """Measures the two pipelines with each setting.

    Args:
        observer: receives the detections.
        feed: sends the images.
    """

    def __init__(self, observer: Observer, feed: Feed) -> None:
        self._observer, self._feed = observer, feed
        self._arrivals = {name: Arrivals(observer, f"/{name}/detections") for name in PIPELINES}

    def turn(self, turn: int) -> dict[str, float]:
        """Runs each setting once. Returns frames per second, and the 50th and 99th percentile of the age in seconds.

        If both pipelines get images, the figures are of both together.
        """
        found: dict[str, float] = {}
        for rival in rotated(RIVALS, turn):
            fed = PIPELINES[:1] if rival == ALONE else PIPELINES
            for name in PIPELINES:
                self._observer.set(f"/{name}/backbone", objective=OBJECTIVES[rival])
            for name in fed:
                self._feed.rate(f"/{name}/image", RATE_HZ)
            together = Together([self._arrivals[name] for name in fed])
            together.settle(SETTLE_S)
            watched = together.during(MEASURED_S)
            for name in fed:
                self._feed.rate(f"/{name}/image", 0.0)
            together.wait_for_quiet()
            p50_s, p99_s = np.percentile(watched.all_ages, [50, 99])
            found |= {
                f"{rival} hz": watched.frames_hz,
                f"{rival} p50": float(p50_s),
                f"{rival} p99": float(p99_s),
            }
        return found


def claims_of(contest: Contest) -> list[Claim]:
    """Returns the claims that compare ``throughput`` with ``latency``, where no pipeline uses lanes.

    With ``throughput``, results are not much older, and not fewer.
    """
    figures, turn_s = contest.figures, contest.turn_s

    def over(name: str) -> Any:
        return ratio(figures[f"{THROUGHPUT} {name}"], figures[f"{LATENCY} {name}"])

    return [
        Claim("age p50, part of that with objective latency", over("p50"), "x", 1.2, Direction.AT_MOST, turn_s=turn_s),
        Claim("age p99, part of that with objective latency", over("p99"), "x", 1.3, Direction.AT_MOST, turn_s=turn_s),
        Claim("frames/s, times those with objective latency", over("hz"), "x", 0.97, turn_s=turn_s),
    ]


def run(chosen: argparse.Namespace) -> Contest:
    """Starts all processes, and measures."""
    set_up_middleware()
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        pictures, model = Path(folder, "pictures"), Path(folder, "yolo.onnx")
        draw_pictures(pictures)
        export(make_network(), model)
        for name in PIPELINES:  # one after another, because each compares engines on all cores
            given = {"model": str(model), "improve": "before_start", "precision": "fp32", "source": "none"}
            processes.start(["-m", "split_infer_ros", "pipeline"], name, **given)
            with Observer() as observer:
                observer.wait_for_subscriber(f"/{name}/image")
        topics = [f"/{name}/image" for name in PIPELINES]
        with Feed(pictures, topics) as feed, Observer() as observer:
            bench = Bench(observer, feed)
            observer.wait_for_nodes(*topics, *(f"/{name}/detections" for name in PIPELINES))
            contest = Contest("two pipelines", bench.turn, claims_of)
            take_turns([contest], seconds_of_turns(chosen, FULL_S))
    return contest


def report_of(contest: Contest) -> Report:
    """Returns the report: the claims, and the rows and figures behind them."""
    figures = contest.figures
    rows = []
    for rival in RIVALS:
        ages = {f"age_{name}_ms": in_ms(figures[f"{rival} {name}"]) for name in ("p50", "p99")}
        rows.append({"what": contest.name, "rival": rival, **measured(frames_per_s=figures[f"{rival} hz"], **ages)})
        show(rows[-1])
    panels = [
        Panel("age p50", "ms", {rival: in_ms(figures[f"{rival} p50"]) for rival in RIVALS}),
        Panel("frames/s, both together", "1/s", {rival: figures[f"{rival} hz"] for rival in RIVALS}),
    ]
    return Report("two_pipelines", claims_of(contest), rows, panels)


def main() -> int:
    """Runs the benchmark."""
    return run_command(__doc__, lambda chosen: report_of(run(chosen)))


if __name__ == "__main__":
    sys.exit(main())
