"""Demand layering: a model in a part of its weights' memory, and what that costs in time.

One image at a time, passes back to back, weights read past the page cache. Each pipeline against resident weights and
against the obvious rivals (mmap with page faults on cold pages; the whole model read at each pass's start; accelerate's
disk offload, where that is installed), which take turns within one process. Memory is that of a process of its own for
each way, seen from outside: its peak (VmHWM) over the passes less that of one whose layers all lie in one place and
which reads nothing, so that only weights count; where features take more than all weights do, their differences from
run to run would hide these, and it is left out.
Beside each delay stands its bound: the longer of reading everything but what stays, and of computing and what reading
takes of the same cores. As a disk's bandwidth changes from one second to the next, all weights are read with nothing
beside it between any two turns, and each bound is by the reads around its way's own turns. The trade-off that was
predicted is measured at some of its points; there, too, the prediction is for the bandwidth of those seconds. Where
`auto` is to be as quick as resident weights, further turns of these two alone say whether it is, and turns of resident
weights while as much is read in vain, what reading takes of this machine in any case.

On a GPU: each way of reading, against resident weights and an upload of all weights for each pass. What a way holds is
the memory on the GPU. The bound is the longer of computing and of reading all weights.

From the source tree: `PYTHONPATH=. python benchmarks/demand_layering.py`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.demand_layering`
import _layering_child as child
from _layering_on_gpu import conclude_on_gpu, measure_on_gpu
from _layering_peak import peak
from _layering_rivals import can_offload
from _layering_turns import Disk, over_resident, passes

from split_infer_ros.layering.optimiser import Point, choose, trade_off
from split_infer_ros.layering.pack import pack_model
from split_infer_ros.layering.predictor import Machine, predict
from split_infer_ros.layering.residency import ASYNCHRONOUS, RESIDENT, SYNCHRONOUS, TWO_STAGE
from split_infer_ros.layering.ring import RingPlan, least_capacity
from split_infer_ros.layering.streamed import StreamedHalf
from split_infer_ros.layering.timing import time_model
from split_infer_ros.split.load import choose_device, load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.report import AT_MOST, Claim, Panel, Report, arguments, deliver, show

MODELS = ("yolov3", "retinanet", "resnet50", "vgg16", "alexnet")
COMPUTE_BOUND = ("yolov3", "retinanet")  # those whose reading is to hide behind computing
WAYS = (RESIDENT, SYNCHRONOUS, ASYNCHRONOUS, TWO_STAGE, child.CHOSEN, child.MAPPED, child.WHOLE, child.OFFLOADED)
QUICK_WAYS = (RESIDENT, TWO_STAGE, child.CHOSEN, child.MAPPED)
ALLOWED_S = 1e-3
SHARE = 0.25  # of its weights, that auto may hold
ROOM = 0.9  # of that for the ring: what else comes with it is seen from outside as well
CONSTANT_MB = 10.0  # a reader, its thread and what it compares with
MB = 1e6


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    models: Sequence[str]
    ways: Sequence[str]
    rounds: int
    passes: int  # of one way in a row; the first one is not counted
    pairs_s: float  # for which resident weights and auto, whose delays are to be alike, take further turns
    points: int  # of the trade-off, at which what was predicted is measured
    seen: Sequence[str]  # ways whose memory is looked at from outside


QUICK = Effort(("yolov3",), QUICK_WAYS, 1, 2, 0.0, 1, (child.CHOSEN,))
FULL = Effort(MODELS, WAYS, 3, 3, 60.0, 3, WAYS)


def run(effort: Effort, device: torch.device) -> Report:
    """Measure all models on that device."""
    rows: list[Mapping[str, Any]] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # on a disk: /tmp may lie in memory
        for name in effort.models:
            path = Path(folder) / f"{name}.weights"
            if device.type == "cuda":
                # a pass takes a small part of the CPU's time
                found, times = measure_on_gpu(name, path, device, 3 * effort.rounds, 2 * effort.passes)
                claims += conclude_on_gpu(name, found)
            else:
                found, times = measure(name, path, effort)
                claims += conclude(name, found)
            rows += found
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
        contents = child.contents_of(model, path)
        points, machine = optimise(model, path, images, contents)
        point = choose(points, machine.compute, ALLOWED_S)
        placement = _numbers(point)
        for way in effort.ways[1:]:
            if way == child.OFFLOADED and not can_offload():
                continue
            halves[way] = child.make(model, path, way, placement)
        equal = {way: same(half(images), expected, way != child.OFFLOADED) for way, half in halves.items()}
        disk = Disk(contents)
        times: dict[str, list[float]] = {way: [] for way in halves}
        speeds: dict[str, list[float]] = {way: [] for way in halves}
        for _ in range(effort.rounds):
            for way, half in halves.items():
                times[way] += passes(half, images, effort.passes)[1:]
                speeds[way].append(disk.read())
        over, beside = over_resident(
            *(halves[RESIDENT], halves[child.CHOSEN], child.reading(contents)),
            *(images, effort.passes, effort.pairs_s),
        )
        curve = compare(model, path, images, points, machine, disk, effort)
    memory = {way: half.weight_bytes for way, half in halves.items() if isinstance(half, StreamedHalf)}
    stats = {way: half.stats() for way, half in halves.items() if isinstance(half, StreamedHalf)}
    for half in halves.values():
        if isinstance(half, StreamedHalf):
            half.close()
    total = sum(contents.sizes) + contents.kept_bytes
    largest = max(piece.nbytes for own in contents.pieces.values() for piece in own)
    compute = statistics.median(times[RESIDENT])
    core_s = statistics.median(disk.core_s)
    seen = peaks(name, path, [child.NOTHING, *(way for way in times if way in effort.seen)], placement)
    rest = seen[child.NOTHING] - max(contents.sizes)
    rows = []
    for way in times:
        stays = sum(contents.sizes[: placement[0]]) if way == child.CHOSEN else total if way == RESIDENT else 0
        delay = statistics.median(times[way])
        bandwidth = statistics.median(speeds[way])
        busy_s = core_s * (1 - stays / total) / torch.get_num_threads()
        bound = max(compute + busy_s, (total - stays) / bandwidth)
        rows.append(
            {
                "model": name,
                "way": way,
                "delay_ms": 1e3 * delay,
                "bound_ms": 1e3 * bound,
                "curve": curve if way == child.CHOSEN else None,
                "over_resident_percent": 100 * over if way == child.CHOSEN else None,
                "reading_beside_percent": 100 * beside if way == child.CHOSEN else None,
                "weights_mb": total / MB,
                "largest_mb": largest / MB,
                "memory_mb": memory[way] / MB if way in memory else None,
                "peak_mb": (seen[way] - rest) / MB if way in seen and rest < total else None,
                "read_mb_s": bandwidth / MB,
                "read_cpu_ms": 1e3 * core_s,
                "stalled_s": stats[way].stalled_s if way in stats else None,
                "equal": equal[way],
                "compute_ms": 1e3 * machine.compute,
            }
        )
        show(rows[-1])
    return rows, times


def optimise(
    model: SplitModel, path: Path, images: torch.Tensor, contents: child.Contents
) -> tuple[list[Point], Machine]:
    """The trade-off up to a millisecond or a hundredth over resident's delay, by the times of layers seen here."""

    def make(plan: RingPlan) -> StreamedHalf:
        return StreamedHalf(child.contents_of(model, path), plan)

    machine = time_model(make, contents.sizes, contents.uses, [images], 3)
    most = max(ROOM * SHARE * sum(contents.sizes), least_capacity(contents.sizes, contents.uses))
    return trade_off(contents.sizes, contents.uses, machine, most, ALLOWED_S), machine


def compare(
    model: SplitModel,
    path: Path,
    images: torch.Tensor,
    points: Sequence[Point],
    machine: Machine,
    disk: Disk,
    effort: Effort,
) -> list[dict[str, float]]:
    """Some points of the trade-off, from its one end to the other, each as predicted and as measured."""
    most = effort.points
    chosen = sorted({round(index * (len(points) - 1) / max(1, most - 1)) for index in range(most)})
    found = []
    for point in (points[index] for index in chosen):
        disk.read()
        half = child.make(model, path, child.CHOSEN, _numbers(point))
        assert isinstance(half, StreamedHalf)
        measured = statistics.median(passes(half, images, effort.passes)[1:])
        half.close()
        predicted = predict(point.placement.plan, replace(machine, bandwidth=disk.read()))
        row = {"memory_mb": point.memory / MB, "predicted_ms": 1e3 * predicted, "measured_ms": 1e3 * measured}
        found.append(row)
        show(row)
    return found


def peaks(name: str, path: Path, ways: Sequence[str], placement: tuple[int, int]) -> dict[str, int]:
    """The bytes of each way, two at a time: they are the same however long it takes."""
    with ThreadPoolExecutor(2) as threads:
        return dict(zip(ways, threads.map(lambda way: peak(name, path, way, placement), ways), strict=True))


def _numbers(point: Point) -> tuple[int, int]:
    return point.placement.resident, point.placement.plan.capacity


def same(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], bits: bool = True) -> bool:
    """Bit for bit; or, of kernels that sum in another order, within 1e-3 of the largest value."""
    pairs = zip(found, expected, strict=True)
    return all(torch.equal(a, b) if bits else bool((a - b).abs().max() <= 1e-3 * b.abs().max()) for a, b in pairs)


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
            if row["peak_mb"] is not None:
                more = f"{name}: {way}, seen from outside, holds more than that by"
                claims.append(Claim(more, row["peak_mb"] - row["memory_mb"], "MB", CONSTANT_MB, AT_MOST))
    chosen = by_way[child.CHOSEN]
    share = 100 * chosen["memory_mb"] / chosen["weights_mb"]
    claims.append(Claim(f"{name}: auto holds, of its weights", share, "%", 100 * SHARE, AT_MOST))
    if chosen["peak_mb"] is not None:
        seen = 100 * chosen["peak_mb"] / chosen["weights_mb"]
        claims.append(Claim(f"{name}: auto holds, seen from outside", seen, "%", 100 * SHARE, AT_MOST))
    if name in COMPUTE_BOUND:
        more = max(100 * ALLOWED_S * 1e3 / resident, 1.0)
        claims.append(Claim(f"{name}: auto, over resident", chosen["over_resident_percent"], "%", more, AT_MOST))
    reached = 100 * chosen["bound_ms"] / chosen["delay_ms"]
    claims.append(Claim(f"{name}: auto, of its bound", reached, "%", 90.0))
    off = max(100 * abs(point["predicted_ms"] / point["measured_ms"] - 1) for point in chosen["curve"])
    claims.append(Claim(f"{name}: predicted, off by at most", off, "%", 10.0, AT_MOST))
    return claims


def main() -> int:
    """Run the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="which ones; unless given, all (--quick: one)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    chosen = parser.parse_args()
    effort = QUICK if chosen.quick else FULL
    effort = replace(effort, models=chosen.models or effort.models)
    deliver(run(effort, choose_device(chosen.device)), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
