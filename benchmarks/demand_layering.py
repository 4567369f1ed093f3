"""Demand layering: a model in a part of its weights' memory, and what that costs in time.

One image at a time, passes back to back, weights read past the page cache. Each pipeline against resident weights and
against the obvious rivals (mmap with page faults on cold pages; the whole model read at each pass's start), which take
turns within one process. Memory is that of a process of its own for each way, seen from outside: its peak (VmHWM) over
the passes less that of one whose layers all lie in one place and which reads nothing, so that only weights count.
Beside each delay stands its bound: the longer of computing and reading everything but what stays.

On the CPU. From the source tree: `PYTHONPATH=. python benchmarks/demand_layering.py`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.demand_layering`
import _layering_child as child

from split_infer_ros.layering.optimiser import Point, choose, explore, goal_of
from split_infer_ros.layering.pack import pack_model
from split_infer_ros.layering.predictor import Machine, predict
from split_infer_ros.layering.residency import ASYNCHRONOUS, RESIDENT, SYNCHRONOUS, TWO_STAGE
from split_infer_ros.layering.ring import least_capacity
from split_infer_ros.layering.streamed import StreamedHalf
from split_infer_ros.split.model import SplitModel, load_model
from split_infer_ros.telemetry.report import AT_MOST, Claim, Panel, Report, arguments, deliver, show

MODELS = ("yolov3", "retinanet", "resnet50", "vgg16", "alexnet")
COMPUTE_BOUND = ("yolov3", "retinanet")  # those whose reading is to hide behind computing
WAYS = (RESIDENT, SYNCHRONOUS, ASYNCHRONOUS, TWO_STAGE, child.CHOSEN, child.MAPPED, child.WHOLE)
QUICK_WAYS = (RESIDENT, TWO_STAGE, child.CHOSEN, child.MAPPED)
ALLOWED_S = 1e-3
SHARE = 0.25  # of its weights, that auto may hold
MB = 1e6
WAIT_S = 120.0


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    models: Sequence[str]
    ways: Sequence[str]
    rounds: int
    passes: int  # of one way in a row; the first one is not counted


QUICK = Effort(("yolov3",), QUICK_WAYS, 2, 3)
FULL = Effort(MODELS, WAYS, 2, 4)


def run(effort: Effort) -> Report:
    """Measure all models."""
    rows: list[Mapping[str, Any]] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # on a disk: /tmp may lie in memory
        for name in effort.models:
            found, times = measure(name, Path(folder) / f"{name}.weights", effort)
            rows += found
            claims += conclude(name, found)
            panels.append(Panel(f"{name}, batch 1", "ms", {way: [1e3 * t for t in of] for way, of in times.items()}))
    return Report("demand_layering", claims, rows, panels)


def measure(name: str, path: Path, effort: Effort) -> tuple[list[Mapping[str, Any]], dict[str, list[float]]]:
    """A row for each way, and the times of its passes."""
    model = load_model(name, "random", "cpu")
    pack_model(model, path, torch.get_num_threads())
    images = child.images_of(model)
    with torch.inference_mode():
        halves: dict[str, child.Half] = {RESIDENT: model.backbone("output")}
        expected = halves[RESIDENT](images)
        point, machine = optimise(model, path, images)
        placement = point.placement.resident, point.placement.plan.capacity
        for way in effort.ways[1:]:
            halves[way] = child.make(model, path, way, placement)
        equal = {way: same(half(images), expected) for way, half in halves.items()}
        times: dict[str, list[float]] = {way: [] for way in halves}
        for _ in range(effort.rounds):
            for way, half in halves.items():
                times[way] += passes(half, images, effort.passes)[1:]
    contents = child.contents_of(model, path)
    memory = {way: half.weight_bytes for way, half in halves.items() if isinstance(half, StreamedHalf)}
    stats = {way: half.stats() for way, half in halves.items() if isinstance(half, StreamedHalf)}
    for half in halves.values():
        if isinstance(half, StreamedHalf):
            half.close()
    total, largest = sum(contents.sizes) + contents.kept_bytes, max(contents.sizes)
    compute = statistics.median(times[RESIDENT])
    bandwidth = statistics.median(read_all(contents, 3))
    rest = peaks(name, path, [child.NOTHING], placement)[child.NOTHING] - largest
    seen = peaks(name, path, effort.ways, placement)
    rows = []
    for way in times:
        stays = sum(contents.sizes[: placement[0]]) if way == child.CHOSEN else total if way == RESIDENT else 0
        delay = statistics.median(times[way])
        bound = max(compute, (total - stays) / bandwidth)
        rows.append(
            {
                "model": name,
                "way": way,
                "delay_ms": 1e3 * delay,
                "bound_ms": 1e3 * bound,
                "predicted_ms": 1e3 * point.delay if way == child.CHOSEN else None,
                "weights_mb": total / MB,
                "largest_mb": largest / MB,
                "memory_mb": memory[way] / MB if way in memory else None,
                "peak_mb": (seen[way] - rest) / MB,
                "read_mb_s": bandwidth / MB,
                "stalled_s": stats[way].stalled_s if way in stats else None,
                "equal": equal[way],
                "compute_ms": 1e3 * machine.compute,
            }
        )
        show(rows[-1])
    return rows, times


def optimise(model: SplitModel, path: Path, images: torch.Tensor) -> tuple[Point, Machine]:
    """The least memory within a millisecond or a hundredth of resident's delay, by the times of layers seen here."""
    half = child.make(model, path, ASYNCHRONOUS)
    assert isinstance(half, StreamedHalf)
    passes(half, images, 3)
    assert half.times is not None
    machine = Machine(half.times.steps, half.times.rest, half.stats().bandwidth)
    half.close()
    contents = child.contents_of(model, path)
    goal = goal_of(machine.compute, ALLOWED_S)
    most = max(SHARE * sum(contents.sizes), least_capacity(contents.sizes, contents.uses))
    points = explore(contents.sizes, contents.uses, lambda placement: predict(placement.plan, machine), most, goal)
    for point in points:
        print(f"  {point.memory / MB:.1f} MB: predicted {1e3 * point.delay:.1f} ms", flush=True)
    return choose(points, goal), machine


def passes(half: child.Half, images: torch.Tensor, count: int) -> list[float]:
    """Seconds of each of some passes in a row."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        half(images)
        found.append(time.perf_counter() - start)
    return found


def read_all(contents: child.Contents, count: int) -> list[float]:
    """Bytes a second of reading all weights and doing nothing else, some times."""
    idle = child.reading(contents)
    found = []
    for _ in range(count):
        start = time.perf_counter()
        idle()
        found.append(sum(contents.sizes) / (time.perf_counter() - start))
    return found


def same(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def peaks(name: str, path: Path, ways: Sequence[str], placement: tuple[int, int]) -> dict[str, int]:
    """Bytes by which each way's process grows at most, once all but its weights is there."""
    return {way: peak(name, path, way, placement) for way in ways}


def peak(name: str, path: Path, way: str, placement: tuple[int, int]) -> int:
    """Of one process, from outside."""
    command = [sys.executable, child.__file__, name, str(path), way, "3", *map(str, placement)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # for which weights were packed
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            for word in ("ready", "open", "done"):
                assert process.stdout.readline().startswith(word), f"{way} does not get {word}"
                if word == "ready":
                    before = status(process.pid, "VmRSS")
                elif word == "open":
                    Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # the peak from here on
                else:
                    after = status(process.pid, "VmHWM")
                process.stdin.write("\n")
                process.stdin.flush()
            process.wait(WAIT_S)
        finally:
            process.kill()
    return after - before


def status(process: int, field: str) -> int:
    """A field of a process's status, bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def conclude(name: str, rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """The goals."""
    by_way = {row["way"]: row for row in rows}
    claims = [Claim(f"{name}: ways that give the same bits", sum(row["equal"] for row in rows), "", len(rows))]
    resident = by_way[RESIDENT]["delay_ms"]
    for way, goal in ((TWO_STAGE, 1.1), (ASYNCHRONOUS, 2.0)):
        if way in by_way:
            row = by_way[way]
            held = f"{name}: {way} holds, times the largest tile"
            claims.append(Claim(held, row["memory_mb"] / row["largest_mb"], "x", goal, AT_MOST))
    chosen = by_way[child.CHOSEN]
    share = 100 * chosen["memory_mb"] / chosen["weights_mb"]
    claims.append(Claim(f"{name}: auto holds, of its weights", share, "%", 100 * SHARE, AT_MOST))
    seen = 100 * chosen["peak_mb"] / chosen["weights_mb"]
    claims.append(Claim(f"{name}: auto holds, seen from outside", seen, "%", 100 * SHARE, AT_MOST))
    if name in COMPUTE_BOUND:
        more = max(100 * ALLOWED_S * 1e3 / resident, 1.0)
        over = 100 * (chosen["delay_ms"] / resident - 1)
        claims.append(Claim(f"{name}: auto, over resident", over, "%", more, AT_MOST))
    else:
        reached = 100 * chosen["bound_ms"] / chosen["delay_ms"]
        claims.append(Claim(f"{name}: auto, of its bound", reached, "%", 90.0))
    off = 100 * abs(chosen["predicted_ms"] / chosen["delay_ms"] - 1)
    claims.append(Claim(f"{name}: predicted, off by", off, "%", 10.0, AT_MOST))
    return claims


def main() -> int:
    """Run the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="which ones; unless given, all (--quick: one)")
    chosen = parser.parse_args()
    effort = QUICK if chosen.quick else FULL
    deliver(run(replace(effort, models=chosen.models or effort.models)), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
