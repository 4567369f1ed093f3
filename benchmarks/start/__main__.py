"""Compares how the pipeline and usual nodes start: time, processor time and memory up to the first detection.

All rivals run the same ONNX file of the size of YOLOv8n, except one pipeline with the model `shapes` in torch. A camera
sends 640x480 images already before the start. Time is from the start of the process to the arrival of the first message
of detections at an observer. Processor time is that of the process and its child processes up to then. Memory is
measured after five seconds in which images come slowly, and again after five more in which the camera is too fast for
the network. The pipelines that are not launched have `objective: throughput`, so a second compiled model then serves
two batches at once. By default, there is none, and nothing else differs. Shared pages are added for each process. The
rivals:

- `pipeline_openvino`, `pipeline_onnxruntime`: this package in one process with that engine. Its cache holds the
  measurements of an earlier start.
- `pipeline_first_start`: the pipeline as after installation: its cache is empty, and it chooses the engine itself. Its
  figures include the processes that inspect the file, and that try other engines while it serves.
- `backbone_and_head`: two processes, with features in shared memory. Their memory and processor time are added.
- `pipeline_shapes_on_torch`: a model that torch runs.
- `pipeline_by_ros2_launch`: `pipeline_openvino` by way of `ros2 launch`, where that is installed. Launch is included.
- `usual_openvino_fp32`, `usual_onnxruntime`: a node with one callback around the engine, in fp32.
- `usual_openvino_as_it_compiles`: the node around OpenVINO in the precision that OpenVINO takes by default: bf16 on
  processors with AVX512_BF16 or AMX_BF16. Where the default is fp32, `usual_openvino_fp32` stands for both, and its row
  says so.

Rivals start in turns, in changing order, one at a time. Each has started once before. The claims compare with the nodes
in fp32. A quick run has three starts of `pipeline_openvino`, of `pipeline_first_start` and of the nodes around
OpenVINO, and takes their memory after a second.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import median, ratio
from benchmarks.common.picture import Panel
from benchmarks.common.report import Report, run_command, show
from benchmarks.common.rows import measured
from benchmarks.common.turns import Contest, take_turns
from benchmarks.common.yolo_sized import export, make_network
from benchmarks.rivals.usual import precision_row
from benchmarks.rivals.usual_openvino import compiles_in
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Observer
from benchmarks.ros.pictures import draw_pictures
from benchmarks.ros.processes import set_up_middleware
from benchmarks.start.turns import (
    ANONYMOUS,
    BUSY,
    ENGINES,
    FIRST,
    OPENVINO,
    PROCESSOR,
    RESIDENT,
    START,
    START_FIGURES,
    TWO_PROCESSES,
    Starts,
    all_rivals,
    ours,
    quick_rivals,
    usual,
)

FULL_STARTS, QUICK_STARTS = 15, 3
FULL_SETTLE_S, QUICK_SETTLE_S = 5.0, 1.0
TITLES = {
    START: ("first detection", "s"),
    PROCESSOR: ("processor time until then", "s"),
    RESIDENT: ("resident memory", "MB"),
    ANONYMOUS: ("anonymous memory", "MB"),
    BUSY: ("anonymous memory, camera too fast", "MB"),
}
FIRST_START_S = 4.0  # a robot that starts with a new model sees after this many seconds, at most
GOALS = {START: 2.0, PROCESSOR: 2.0, ANONYMOUS: 1.7, BUSY: 1.7}  # at most so many times the usual node's


def run(chosen: argparse.Namespace) -> Report:
    """Starts the rivals again and again, measures them, and returns the report."""
    set_up_middleware()
    with tempfile.TemporaryDirectory() as folder:
        pictures, model, cache = (Path(folder, name) for name in ("pictures", "yolo.onnx", "cache"))
        draw_pictures(pictures)
        export(make_network(), model)
        default = compiles_in(model)
        rivals = quick_rivals(default) if chosen.quick else all_rivals(default)
        with Feed(pictures, [f"/{rival}/image" for rival in rivals]) as feed, Observer() as observer:
            settle_s = QUICK_SETTLE_S if chosen.quick else FULL_SETTLE_S
            starts = Starts(rivals, observer, feed, model=model, cache=cache, settle_s=settle_s)
            starts.warm_up()
            contest = Contest("start", starts.turn)
            if chosen.seconds is not None:
                take_turns([contest], chosen.seconds)
            else:
                for _ in range(QUICK_STARTS if chosen.quick else FULL_STARTS):
                    contest.take()
    return conclude(contest, rivals, default)


def conclude(contest: Contest, rivals: tuple[str, ...], default: str) -> Report:
    """Returns the report: the claims, and the rows and figures behind them.

    Args:
        contest: the contest, with all its turns.
        rivals: the names of the rivals.
        default: the precision in which OpenVINO compiles here if none is named.
    """
    rows = [
        {
            "what": contest.name,
            "rival": rival,
            **precision_row(rival, default),
            **measured(**{name: contest.figures[f"{rival} {name}"] for name in START_FIGURES}),
        }
        for rival in rivals
    ]
    for row in rows:
        show(row)
    panels = [
        Panel(title, unit, {rival: contest.figures[f"{rival} {name}"] for rival in rivals})
        for name, (title, unit) in TITLES.items()
    ]
    return Report("start", claims(contest), rows, panels)


def claims(contest: Contest) -> list[Claim]:
    """Returns the claims about the rivals that took part."""
    found = [
        _claim(contest, name, ours(engine), usual(engine), goal, f"the {engine} node's in fp32")
        for engine in ENGINES
        for name, goal in GOALS.items()
        if f"{ours(engine)} {name}" in contest.figures
    ]
    if f"{FIRST} {START}" in contest.figures:
        found.append(_claim(contest, START, FIRST, ours(OPENVINO), 2.0, "a later start's", "of a first start"))
        first = median(contest.figures[f"{FIRST} {START}"])
        title = f"{TITLES[START][0]} of a first start"
        found.append(Claim(title, first, "s", FIRST_START_S, Direction.AT_MOST, turn_s=contest.turn_s))
    if f"{TWO_PROCESSES} {START}" in contest.figures:
        found.append(_claim(contest, START, TWO_PROCESSES, ours(OPENVINO), 1.5, "one process's", "of two processes"))
    return found


def _claim(
    contest: Contest, name: str, one: str, other: str, goal: float, than: str, of: str = "of the pipeline"
) -> Claim:
    """Returns the claim that a figure of one rival is at most ``goal`` times that of another."""
    found = ratio(contest.figures[f"{one} {name}"], contest.figures[f"{other} {name}"])
    title = f"{TITLES[name][0]} {of}, times {than}"
    return Claim(title, found, "x", goal, Direction.AT_MOST, turn_s=contest.turn_s)


def main() -> int:
    """Runs the benchmark."""
    return run_command(__doc__, run)


if __name__ == "__main__":
    sys.exit(main())
