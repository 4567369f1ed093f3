"""Compares the pipeline with usual nodes on a user's own detector: an ONNX file of the size of YOLOv8n.

All rivals get the same 640x480 images and run the same network on the same machine in the same run. The weights of the
network are random, which does not change its speed; its scores depend on the image. The rivals:

- `pipeline`: this package with `model:=FILE.onnx` and all other parameters at their defaults. So the engine is `auto`,
  and engines are compared before the first turn.
- `pipeline_throughput`: the same with `objective: throughput`, so that two batches are computed at a time.
- `usual_torch`, `usual_onnxruntime`, `usual_openvino_fp32`: a node with one callback around an engine, each in fp32
  with all cores and the settings that are best for its latency.
- `usual_openvino_as_it_compiles`: the same node around OpenVINO, which names no precision. OpenVINO then takes its own
  default: bf16 on processors with AVX512_BF16 or AMX_BF16. Where the default is fp32, this node does not run.
  The node in fp32 is the same, and its row says that it stands for both.

Each rival has a process of its own. A camera in another process sends images over DDS, and an observer in this process
receives the detections. The rivals take turns of about two seconds, in changing order. The camera sends to one rival at
a time, and the next turn begins once nothing of the turn before is in flight.

A camera that is too fast for all rivals shows frames a second and their age. A camera at half the slowest rival's rate
shows latency. Age and latency are from the image's stamp to the detections' arrival. Each claim is the median over the
turns of what two rivals did in the same turn, and names the rival. The better engine's node in fp32 is the node
around ONNX Runtime or the one around OpenVINO in fp32, whichever has the better median.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, ratio
from benchmarks.common.picture import Panel
from benchmarks.common.report import Report, run_command, show
from benchmarks.common.rows import in_ms, measured
from benchmarks.common.turns import Contest, take_turns
from benchmarks.common.yolo_sized import export, make_network
from benchmarks.detector.turns import AGE, DetectorBench
from benchmarks.rivals.usual import (
    ONNXRUNTIME,
    OPENVINO_FP32,
    TORCH,
    USUAL,
    as_it_compiles,
    command,
    precision_row,
    without_twin,
)
from benchmarks.rivals.usual_openvino import compiles_in
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Observer
from benchmarks.ros.pictures import draw_pictures
from benchmarks.ros.processes import Processes, seconds_of_turns, set_up_middleware
from benchmarks.ros.rival_turns import BACKBONE_BUSY, HEAD_BUSY, LATENCY, PIPELINE, SATURATION
from benchmarks.ros.trace import Trace

FULL_S = 360.0
THROUGHPUT = f"{PIPELINE}_throughput"


def run(chosen: argparse.Namespace) -> Report:
    """Starts all processes, measures, and returns the report."""
    set_up_middleware()
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        pictures, trace, model = Path(folder, "pictures"), Path(folder, "trace.json"), Path(folder, "yolo.onnx")
        draw_pictures(pictures)
        export(make_network(), model)
        default = compiles_in(model)
        rivals = (PIPELINE, THROUGHPUT, *without_twin(USUAL, default))
        process_ids = start(processes, rivals, trace, model)
        topics = [f"/{rival}/image" for rival in rivals]
        with Feed(pictures, topics) as feed, Observer() as observer:
            bench = DetectorBench(observer, feed, Trace(trace), process_ids)
            observer.wait_for_nodes(*topics, *(f"/{rival}/detections" for rival in rivals))
            bench.warm_up()
            contests = [
                Contest(SATURATION, bench.saturate, throughput_claims),
                Contest(LATENCY, bench.pace, latency_claims),
            ]
            take_turns(contests, seconds_of_turns(chosen, FULL_S))
            return conclude(*contests, bench, default)


def start(processes: Processes, rivals: Sequence[str], trace: Path, model: Path) -> dict[str, list[int]]:
    """Starts the rivals; returns their process ids.

    Args:
        processes: starts the nodes.
        rivals: the names of the rivals. The first ones are the pipelines.
        trace: the file to which the pipeline with the defaults writes its trace.
        model: the ONNX file.
    """
    pipeline = ["-m", "split_infer_ros", "pipeline"]
    given = {"model": str(model), "improve": "before_start", "precision": "fp32", "source": "none"}
    process_ids = {PIPELINE: [processes.start(pipeline, PIPELINE, **given, trace=str(trace))]}
    with Observer() as observer:
        observer.wait_for_subscriber(f"/{PIPELINE}/image")  # the next one finds what this one has compared
    process_ids[THROUGHPUT] = [processes.start(pipeline, THROUGHPUT, **given, objective="throughput")]
    for rival in rivals[2:]:
        process_ids[rival] = [processes.start(command(rival, model), rival)]
    return process_ids


def throughput_claims(contest: Contest) -> list[Claim]:
    """Returns the claims about frames a second, and about the age of their detections."""
    figures, turn_s = contest.figures, contest.turn_s
    better = max((ONNXRUNTIME, OPENVINO_FP32), key=lambda rival: statistics.median(figures[rival]))
    default = as_it_compiles(figures)

    def times(rival: str, pipeline: str = PIPELINE) -> Estimate:
        return ratio(figures[pipeline], figures[rival])

    def age(rival: str) -> Estimate:
        return ratio(figures[f"{PIPELINE} {AGE}"], figures[f"{rival} {AGE}"])

    best, torch = "the better engine's node in fp32", "torch's node in fp32"
    as_default, fast = "OpenVINO's node as it compiles", "with objective throughput"
    at_most = Direction.AT_MOST
    return [
        Claim(f"frames/s, times those of {best}", times(better), "x", 1.0, turn_s=turn_s),
        Claim(f"age p50, camera too fast, part of that of {best}", age(better), "x", 1.0, at_most, turn_s=turn_s),
        Claim(f"frames/s, times those of {as_default}", times(default), "x", 1.0, turn_s=turn_s),
        Claim(
            f"age p50, camera too fast, part of that of {as_default}", age(default), "x", 1.0, at_most, turn_s=turn_s
        ),
        Claim(f"frames/s {fast}, times those of {best}", times(better, THROUGHPUT), "x", 1.15, turn_s=turn_s),
        Claim(f"frames/s {fast}, times those of {torch}", times(TORCH, THROUGHPUT), "x", 1.8, turn_s=turn_s),
    ]


def latency_claims(contest: Contest) -> list[Claim]:
    """Returns the claim about latency."""
    figures = contest.figures
    better = min((ONNXRUNTIME, OPENVINO_FP32), key=lambda rival: statistics.median(figures[rival]))
    part = ratio(figures[PIPELINE], figures[better])
    name = "latency p50, part of the better engine's node in fp32"
    return [Claim(name, part, "x", 0.95, Direction.AT_MOST, turn_s=contest.turn_s)]


def conclude(saturation: Contest, latency: Contest, bench: DetectorBench, default: str) -> Report:
    """Returns the report: the claims, and the rows and figures behind them.

    Args:
        saturation, latency: the contests.
        bench: knows the rivals and their memory and processor time.
        default: the precision in which OpenVINO compiles here if none is named.
    """
    rows = rows_of(saturation, latency, bench, default)
    for row in rows:
        show(row)
    fast, moderate, rivals = saturation.figures, latency.figures, list(bench.rivals)
    return Report(
        "detector",
        [*throughput_claims(saturation), *latency_claims(latency)],
        rows,
        [
            Panel("frames/s, camera too fast", "1/s", {rival: fast[rival] for rival in rivals}),
            Panel("age p50, camera too fast", "ms", {rival: in_ms(fast[f"{rival} {AGE}"]) for rival in rivals}),
            Panel("latency p50, batch 1", "ms", {rival: in_ms(moderate[rival]) for rival in rivals}),
        ],
    )


def rows_of(saturation: Contest, latency: Contest, bench: DetectorBench, default: str) -> list[dict[str, Any]]:
    """Returns one row for each rival in each contest."""
    rows: list[dict[str, Any]] = []
    for contest in (saturation, latency):
        figures = contest.figures
        stages = {name: figures[name] for name in (BACKBONE_BUSY, HEAD_BUSY)}
        for rival in bench.rivals:
            own = stages if rival == PIPELINE else {}
            if contest is saturation:
                found = measured(frames_per_s=figures[rival], age_p50_ms=in_ms(figures[f"{rival} {AGE}"]), **own)
            else:
                found = measured(latency_p50_ms=in_ms(figures[rival]), **own)
            about = {"what": contest.name, "rival": rival, **precision_row(rival, default)}
            rows.append({**about, **found, **bench.usage[contest.name].row(rival)})
    return rows


def main() -> int:
    """Runs the benchmark."""
    return run_command(__doc__, run)


if __name__ == "__main__":
    sys.exit(main())
