"""Compares the pipeline with usual nodes on a user's own detector: an ONNX file of the size of YOLOv8n.

All rivals get the same 640x480 images and run the same network in float32 on the same machine in the same run. Its
weights are seeded, which does not change its speed; its scores depend on the image. The rivals:

- `pipeline`: this package with `model:=FILE.onnx` and otherwise its defaults. So its engine is `auto`, and engines are
  compared before the first turn.
- `usual_torch`, `usual_onnxruntime`, `usual_openvino`: a node with one callback around an engine, each with all cores
  and the settings that are best for its latency.

Each rival has a process of its own. A camera in another process sends images over DDS, and an observer in this process
receives the detections. The rivals take turns of about two seconds, in changing order. The camera sends to one rival at
a time, and the next turn begins once nothing of the last one is in flight.

A camera that is too fast for all rivals shows frames a second. A camera at half the slowest rival's rate shows latency,
from the image's stamp to the detections' arrival. Each claim is the median over the turns of what two rivals did in the
same turn. The better of ONNX Runtime and OpenVINO is the one with the better median.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from _claim import Claim, Direction
from _detector_turns import DetectorBench
from _estimate import ratio
from _feed import Feed
from _picture import Panel
from _report import Report, arguments, deliver, show
from _rival_turns import BACKBONE_BUSY, HEAD_BUSY, LATENCY, PIPELINE, SATURATION
from _ros import Observer, Processes, seconds_of_turns, set_up_middleware
from _rows import in_ms, measured
from _trace import Trace
from _turns import Contest, take_turns
from _yolo_sized import export, make_network
from pipeline import draw_pictures

TORCH, ONNXRUNTIME, OPENVINO = USUAL = ("usual_torch", "usual_onnxruntime", "usual_openvino")
RIVALS = (PIPELINE, *USUAL)
FULL_S = 300.0


def run(chosen: argparse.Namespace) -> Report:
    """Starts all processes and measures."""
    set_up_middleware()
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        pictures, trace, model = Path(folder, "pictures"), Path(folder, "trace.json"), Path(folder, "yolo.onnx")
        draw_pictures(pictures)
        export(make_network(), model)
        process_ids = start(processes, trace, model)
        topics = [f"/{rival}/image" for rival in RIVALS]
        with Feed(pictures, topics) as feed, Observer() as observer:
            bench = DetectorBench(observer, feed, Trace(trace), process_ids)
            observer.wait_for_nodes(*topics, *(f"/{rival}/detections" for rival in RIVALS))
            bench.warm_up()
            contests = [
                Contest(SATURATION, bench.saturate, throughput_claims),
                Contest(LATENCY, bench.pace, latency_claims),
            ]
            take_turns(contests, seconds_of_turns(chosen, FULL_S))
            return conclude(*contests, bench)


def start(processes: Processes, trace: Path, model: Path) -> dict[str, list[int]]:
    """Starts the rivals; returns their process ids."""
    usual = str(Path(__file__).with_name("_usual_detector.py"))
    pipeline = ["-m", "split_infer_ros.nodes.pipeline"]
    process_ids = {PIPELINE: [processes.start(pipeline, PIPELINE, model=str(model), source="none", trace=str(trace))]}
    for rival in USUAL:
        process_ids[rival] = [processes.start([usual, rival.removeprefix("usual_"), str(model)], rival)]
    return process_ids


def throughput_claims(contest: Contest) -> list[Claim]:
    """Returns the claims about frames a second."""
    figures, turn_s = contest.figures, contest.turn_s
    better = max((ONNXRUNTIME, OPENVINO), key=lambda rival: statistics.median(figures[rival]))
    return [
        Claim(
            "frames/s, times those of the better engine's node",
            ratio(figures[PIPELINE], figures[better]),
            "x",
            1.15,
            turn_s=turn_s,
        ),
        Claim(
            "frames/s, times those of torch's node", ratio(figures[PIPELINE], figures[TORCH]), "x", 1.8, turn_s=turn_s
        ),
    ]


def latency_claims(contest: Contest) -> list[Claim]:
    """Returns the claim about latency."""
    figures = contest.figures
    better = min((ONNXRUNTIME, OPENVINO), key=lambda rival: statistics.median(figures[rival]))
    part = ratio(figures[PIPELINE], figures[better])
    name = "latency p50, part of the better engine's node"
    return [Claim(name, part, "x", 0.95, Direction.AT_MOST, turn_s=contest.turn_s)]


def conclude(saturation: Contest, latency: Contest, bench: DetectorBench) -> Report:
    """Returns the report: the claims, and the rows and figures behind them."""
    rows = rows_of(saturation, latency, bench)
    for row in rows:
        show(row)
    return Report(
        "detector",
        [*throughput_claims(saturation), *latency_claims(latency)],
        rows,
        [
            Panel("frames/s, camera too fast", "1/s", {rival: saturation.figures[rival] for rival in RIVALS}),
            Panel("latency p50, batch 1", "ms", {rival: in_ms(latency.figures[rival]) for rival in RIVALS}),
        ],
    )


def rows_of(saturation: Contest, latency: Contest, bench: DetectorBench) -> list[dict[str, Any]]:
    """Returns one row for each rival in each contest."""
    rows: list[dict[str, Any]] = []
    for contest in (saturation, latency):
        figures = contest.figures
        stages = {name: figures[name] for name in (BACKBONE_BUSY, HEAD_BUSY)}
        for rival in RIVALS:
            own = stages if rival == PIPELINE else {}
            values = figures[rival] if contest is saturation else in_ms(figures[rival])
            name = "frames_per_s" if contest is saturation else "latency_p50_ms"
            found = measured(**{name: values}, **own)
            rows.append({"what": contest.name, "rival": rival, **found, **bench.usage[contest.name].row(rival)})
    return rows


def main() -> int:
    """Runs the benchmark."""
    chosen = arguments(__doc__).parse_args()
    deliver(run(chosen), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
