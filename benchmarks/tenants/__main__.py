"""Compares the node `tenants`, which serves all cameras in one process, with a node in a process of each camera.

All rivals get the same 640x480 images and run the same detectors on the same machine in the same run. The detectors are
ONNX files: one of the size of YOLOv8n, and two with a half and three quarters of its channels. Their weights are
random, which does not change their speed; their scores depend on the image. With three models, the cameras use them in
turn. The rivals:

- `tenants`: this package in one process with a tenant for each camera. The engine is `auto`.
- `usual`: a node with one callback around OpenVINO for each camera, with all cores and the best settings for a low
  latency.
- `pipelines`: this package's pipeline in a process for each camera. The engine is `auto`.

Both rivals of this package compare engines before the first turn (`improve: before_start`). All other parameters have
their defaults. All rivals compute in fp32. With `--precision default`, none is named, and each rival takes its own. The
tenants and pipelines then look for it on the first live frames, before the turns.

Cameras in another process send images over DDS, and an observer in this process receives the detections. The rivals
take turns in changing order. The cameras of one rival at a time send, and the next rival's turn begins once nothing of
the one before is in flight. All cameras have one rate. Each begins at a random part of its period, and so do the
cameras of the other rivals in this turn. There are two loads:

- `cameras too fast`: all cameras together send 1.5 times as many images as the fastest rival can take.
- `half load`: half as many as the slowest rival can take.

An age is the time from an image's stamp to the arrival of its detections. Frames a second are those of all cameras
together. With several models, a rival can have more of them because it serves the cameras of small models more often:
`smallest_share` is the share of the camera with the fewest frames, divided by an equal share. Memory is what all
processes of a rival hold in RAM after a turn of cameras that are too fast. A library or a file in shared memory counts
once for each rival. Peak memory is added for each process.

The report is written again after each cell, so a long run can be ended early.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.report import arguments, deliver, show
from benchmarks.common.turns import Contest, take_turns
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Observer
from benchmarks.ros.pictures import draw_pictures
from benchmarks.ros.processes import Processes, seconds_of_turns, set_up_middleware
from benchmarks.tenants.cell import (
    DEFAULT,
    FP32,
    MODELS,
    PIPELINES,
    RIVALS,
    SMALL,
    TENANTS,
    Cell,
    export_models,
    start,
    topics,
)
from benchmarks.tenants.reports import Reports
from benchmarks.tenants.tables import CellResult, claims_under, conclude, rows_of
from benchmarks.tenants.turns import FULL_TURN_S, LOADS, QUICK_TURN_S, TenantsBench

CAMERAS, QUICK_CAMERAS = (2, 4, 8), (2,)
NUMBERS = (1, len(MODELS))  # of models
FULL_S = 360.0  # of turns in a cell


def cells(chosen: argparse.Namespace) -> list[Cell]:
    """Returns the cells that the arguments name, or the usual ones."""
    counts = chosen.cameras or (QUICK_CAMERAS if chosen.quick else CAMERAS)
    numbers = chosen.models or NUMBERS[: 1 if chosen.quick else None]
    first = (SMALL,) if chosen.quick else MODELS[:1]
    return [Cell(count, first if number == 1 else MODELS) for count in counts for number in numbers]


def run(chosen: argparse.Namespace) -> None:
    """Measures all cells, and writes the report after each of them."""
    set_up_middleware()
    todo = cells(chosen)
    results: list[CellResult] = []
    with tempfile.TemporaryDirectory() as folder:
        pictures = Path(folder, "pictures")
        draw_pictures(pictures)
        paths = export_models({model for cell in todo for model in cell.models}, Path(folder))
        for cell in todo:
            print(f"{cell.name}: starts", flush=True)
            results.append(measure(cell, chosen, pictures, paths, share=1 / len(todo)))
            for row in rows_of(results[-1]):
                show(row)
            deliver(conclude(results), chosen)


def measure(
    cell: Cell, chosen: argparse.Namespace, pictures: Path, paths: Mapping[str, Path], *, share: float
) -> CellResult:
    """Starts the rivals of a cell, lets them take turns, and returns the results.

    Args:
        cell: the cell.
        chosen: the arguments.
        pictures: the folder of the pictures that the cameras send.
        paths: the ONNX file of each model.
        share: the cell's share of the seconds that the arguments give to all cells.
    """
    with Processes() as processes:
        process_ids = start(cell, processes, paths, chosen.precision)
        images, found = (every_topic(cell, name) for name in ("image", "detections"))
        with Feed(pictures, images) as feed, Observer() as observer:
            turn_s = QUICK_TURN_S if chosen.quick else FULL_TURN_S
            bench, reports = TenantsBench(cell, observer, feed, process_ids, turn_s), Reports(observer, cell)
            observer.wait_for_nodes(*images, *found)
            if chosen.precision == DEFAULT:
                for rival in (TENANTS, PIPELINES):
                    bench.run_while(rival, lambda rival=rival: reports.goes_on(rival))
            bench.warm_up()
            contests = [
                Contest(load, turn, lambda contest: claims_under(contest.name, contest, cell.name))
                for load, turn in zip(LOADS, (bench.saturate, bench.pace), strict=True)
            ]
            take_turns(contests, seconds_of_turns(chosen, FULL_S / share) * share)
            return CellResult.of(cell.name, contests, bench, reports.rows(cell.name))


def every_topic(cell: Cell, name: str) -> Sequence[str]:
    """Returns the topics of a name, ``image`` or ``detections``, of all rivals and cameras."""
    return [topic for rival in RIVALS for topic in topics(cell, rival, name)]


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the arguments."""
    found = arguments(__doc__)
    found.add_argument("--cameras", nargs="+", type=int, metavar="N", help="default: 2, 4 and 8")
    found.add_argument("--models", nargs="+", type=int, choices=NUMBERS, help="how many; default: one, and three")
    found.add_argument("--precision", choices=(FP32, DEFAULT), default=FP32, help="of all rivals; default: fp32")
    return found


def main() -> int:
    """Runs the benchmark."""
    run(parser().parse_args())
    return 0


if __name__ == "__main__":
    sys.exit(main())
