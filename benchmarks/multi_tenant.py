"""Requests of several models on one processor: one by one, side by side, by turns, merged, merged and fused.

The paper's load (§III): requests of AlexNet, ResNet-18 and VGG-16, a third each, that come as a Poisson process, at
parts and multiples of what one-by-one execution was measured to serve; and three requests alone (Fig. 6). All rivals
serve the same seeded trace with the same prepared models on the same images, by turns, so that a machine that gets
slower does so for all. At the heaviest load every window and count of workers is tried, at the others the best of
each. Throughput, mean execution, mean and p99 queueing delay are shown in parts of those of sequential execution, as
in Fig. 5. The bound is what each model's best batch takes an image, run in the same turns; on a CPU in the better of
two ways: each operation on all cores, or each core with some of the images.

Needs torch and torchvision only: from the source tree, `PYTHONPATH=. python benchmarks/multi_tenant.py`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.multi_tenant`
from _tenant_rivals import (
    BreadthFirst,
    Concurrent,
    Load,
    Log,
    Scheduled,
    ScheduledOnLanes,
    Serve,
    poisson_trace,
    sequential,
)

from split_infer_ros.pipeline.cores import all_cores
from split_infer_ros.split.model import choose_device, load_model
from split_infer_ros.telemetry.report import AT_LEAST, AT_MOST, Claim, Panel, Report, arguments, deliver, show
from split_infer_ros.tenancy.costs import Costs
from split_infer_ros.tenancy.measure import blank, measure
from split_infer_ros.tenancy.request import DROP, FINISH, Request, RequestQueue
from split_infer_ros.tenancy.scheduler import Rules, decide
from split_infer_ros.tenancy.side_by_side import SideBySide, serve_more

MODELS = ("alexnet", "resnet18", "vgg16")
SEQUENTIAL, CONCURRENT, BREADTH_FIRST = "sequential", "concurrent", "breadth-first"
MERGE, FUSE = "merge", "merge and fuse"
DELAYS = {"delay_mean_s": "mean delay", "delay_p99_s": "p99 delay"}
FIGURES = {"per_second": "throughput", "execution_s": "execution", **DELAYS}
WAITING = 1000


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        requests: of a trace.
        loads: in parts of sequential capacity.
        windows: of the scheduler.
        sizes: of batches whose cost is measured.
        rounds: samples of each cost.
        few: turns with three requests.
        turns: of each rival with each trace.
        spare: at lighter loads only sequential execution and the scheduler are run, with as many fewer requests.
    """

    requests: int
    loads: Sequence[float]
    windows: Sequence[int]
    sizes: Sequence[int]
    rounds: int
    few: int
    turns: int
    spare: bool = False


QUICK = Extent(45, (0.5, 3.0), (16,), (1, 4), 1, 2, 1, spare=True)
FULL = Extent(1000, (0.5, 1.0, 3.0), (5, 8, 16, 32), (1, 2, 4, 8), 3, 20, 1)


@dataclass(frozen=True)
class Ways:
    """What executions take on all cores (or the GPU), and on a lane while all are at work.

    Attributes:
        whole, lane: costs.
        lanes: one a core, or 0 on a GPU and on a single core.
    """

    whole: Costs
    lane: Costs
    lanes: int

    def best_s(self, model: str) -> float:
        """Seconds of an image, by every way of running that the package has."""
        return min(self.whole.best_image_s(model), self.lane.best_image_s(model) / max(1, self.lanes))


def measure_ways(load: Load, extent: Extent) -> Ways:
    """Costs of both ways; a GPU has one."""
    engine = load.engine()
    whole = measure(load.models, engine, extent.sizes, extent.rounds)
    engine.close()
    lanes = 1 if engine.runs_behind else all_cores()
    if lanes == 1:
        return Ways(whole, whole, 0)
    beside = SideBySide([load.engine(cores=1) for _ in range(lanes)])
    lane = measure(load.models, beside, extent.sizes, extent.rounds)
    beside.close()
    return Ways(whole, lane, lanes)


def run(device: torch.device, extent: Extent) -> Report:
    """Measure costs, then serve the same traces in every way, the heaviest load first."""
    models = {name: load_model(name, "random", str(device)) for name in MODELS}
    load = Load(models, {name: torch.rand_like(blank(model, 1)) for name, model in models.items()})
    costs = measure_ways(load, extent)
    capacity = len(models) / sum(costs.whole.batch_s(name, 1) for name in models)
    rows: list[dict[str, Any]] = [*batches(costs, extent.sizes)]
    rows.append({"what": "bound", "per_second": len(models) / sum(map(costs.best_s, models))})
    ways = rivals(costs, extent.windows)
    for part in sorted(extent.loads, reverse=True):
        count = round(extent.requests * min(1.0, part)) if extent.spare else extent.requests
        trace = poisson_trace(MODELS, count, part * capacity)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for _ in range(extent.turns):
            for name, serve in ways.items():
                found[name].append(facts(serve(trace, load)))
        rows += [{"what": "poisson", "load": part, "rival": name} | medians(turns) for name, turns in found.items()]
        ways = {name: ways[name] for name in best_of_each(rows, spare=extent.spare)}
    rows += three_requests(load, costs, extent.few)
    rows += scheduler_cost(costs.whole, extent.windows)
    for row in rows:
        show(row)
    return Report("multi_tenant", conclude(rows, device.type == "cuda"), rows, panels(rows))


def rivals(costs: Ways, windows: Sequence[int]) -> dict[str, Serve]:
    """By name; ours once for each window, side by side once for each count of workers."""
    found: dict[str, Serve] = {SEQUENTIAL: sequential}
    for workers in (2**power for power in range(1, max(2, all_cores()).bit_length())):
        found[f"{CONCURRENT}, {workers} workers"] = Concurrent(workers)
    found[BREADTH_FIRST] = BreadthFirst(len(MODELS))
    for window in windows:
        found[f"{MERGE}, window {window}"] = Scheduled(costs.whole, Rules(window, fuse=False))
        found[f"{FUSE}, window {window}"] = ours(costs, window)
    return found


def ours(costs: Ways, window: int) -> Serve:
    """Models side by side on lanes where these serve more; else fused where that was measured to be faster."""
    if costs.lanes and serve_more(costs.lane, costs.whole, costs.lanes):
        return ScheduledOnLanes(costs.whole, costs.lane, Rules(window, fuse=False), costs.lanes)
    return Scheduled(costs.whole, Rules(window))


def kind(rival: str) -> str:
    """Its name without its window or its count of workers."""
    return rival.partition(",")[0]


def best_of_each(rows: Sequence[Mapping[str, Any]], spare: bool = False) -> list[str]:
    """At the heaviest load, of each kind the one that serves most; ``spare``: sequential execution and ours alone."""
    best: dict[str, Mapping[str, Any]] = {}
    for row in at_heaviest(rows):
        name = kind(row["rival"])
        if name not in best or row["per_second"] > best[name]["per_second"]:
            best[name] = row
    return [row["rival"] for name, row in best.items() if not spare or name in (SEQUENTIAL, FUSE)]


def at_heaviest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What was served at the heaviest load."""
    served = [row for row in rows if row["what"] == "poisson"]
    heaviest = max(row["load"] for row in served)
    return [row for row in served if row["load"] == heaviest]


def batches(costs: Ways, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """What images were measured to take: on all cores, and where each core has a lane, a lane's share of the time."""
    for name in MODELS:
        for size in sizes:
            row = {"what": "batch", "model": name, "size": size, "image_s": costs.whole.batch_s(name, size) / size}
            yield row | ({"lanes_s": costs.lane.batch_s(name, size) / size / costs.lanes} if costs.lanes else {})


def facts(log: Log) -> dict[str, float]:
    """What became of a trace."""
    delays = log.delays_s
    return {
        "per_second": log.per_second,
        "execution_s": statistics.fmean(log.executions_s),
        "response_s": statistics.fmean(log.responses_s),
        "delay_mean_s": statistics.fmean(delays),
        "delay_p99_s": delays[min(len(delays) - 1, round(0.99 * len(delays)))],
    }


def medians(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure, over the turns."""
    return {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}


def three_requests(load: Load, costs: Ways, turns: int) -> list[dict[str, Any]]:
    """One request of each model at once, again and again; the rivals take turns (Fig. 6)."""
    trace = [Request(number, model, model, 0.0, turn_s=0.0) for number, model in enumerate(MODELS)]
    ways: dict[str, Serve] = {SEQUENTIAL: sequential, FUSE: ours(costs, Rules().window)}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns + 1):
        for name, serve in ways.items():
            found[name].append(serve(trace, load).per_second)
    return [
        {"what": "three requests", "rival": name, "per_second": statistics.median(values[1:])}
        for name, values in found.items()
    ]


def scheduler_cost(costs: Costs, windows: Sequence[int], rounds: int = 200) -> list[dict[str, Any]]:
    """What a decision takes: choosing, and removing what was chosen or is late; where none and where all are late."""
    return [
        {"what": "decision", "window": window, "waiting": waiting, "late": late}
        | {"p50_us": 1e6 * statistics.median(_decisions_s(costs, Rules(window), waiting, late, rounds))}
        for window in windows
        for waiting in (WAITING // 10, WAITING, 10 * WAITING)
        for late in (False, True)
    ]


def _decisions_s(costs: Costs, rules: Rules, waiting: int, late: bool, rounds: int) -> list[float]:
    chance, numbers, queue, times = random.Random(0), itertools.count(), RequestQueue(), []
    deadline_s, when_late = (-1.0, DROP) if late else (math.inf, FINISH)
    for _ in range(rounds):
        while len(queue) < waiting:
            number = next(numbers)
            turn_s, model = number + chance.random(), chance.choice(MODELS)
            queue.add(Request(number, f"tenant {number % 16}", model, 0.0, deadline_s, turn_s, when_late))
        begin = time.perf_counter()
        decision = decide(queue, costs, 0.0, rules)
        queue.remove((*decision.requests, *decision.late))
        times.append(time.perf_counter() - begin)
    return times


def conclude(rows: Sequence[Mapping[str, Any]], on_gpu: bool) -> list[Claim]:
    """The claims, of which some are for a GPU."""
    served: dict[float, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["what"] == "poisson":
            served.setdefault(row["load"], {})[row["rival"]] = row
    best = {kind(rival): rival for rival in best_of_each(rows)}
    (bound,) = (row["per_second"] for row in rows if row["what"] == "bound")
    heaviest = max(served)
    claims = []
    for part in sorted(served, reverse=True):
        mine, base = served[part][best[FUSE]], served[part][SEQUENTIAL]
        others = [row for rival, row in served[part].items() if kind(rival) not in (FUSE, MERGE)]
        at = f"at {part:g} times capacity, {best[FUSE]}"
        if part == heaviest:
            gap = (mine["per_second"] - base["per_second"]) / (bound - base["per_second"])
            claims.append(Claim(f"{at}: part of the gap to the bound", gap, "", 0.7))
        for key, name in DELAYS.items():
            least = min(row[key] for row in others) if part >= 1 else base[key]
            whose = "the best rival's" if part >= 1 else "sequential's"
            claims.append(Claim(f"{at}: {name}, times {whose}", mine[key] / least, "x", 1, AT_MOST))
    few = {row["rival"]: row["per_second"] for row in rows if row["what"] == "three requests"}
    claims.append(Claim("three requests: throughput, times sequential", few[FUSE] / few[SEQUENTIAL], "x", 0.97))
    decisions = [row for row in rows if row["what"] == "decision"]
    for late in (False, True):
        slowest = max(row["p50_us"] for row in decisions if row["late"] == late and row["waiting"] == WAITING)
        which = "all late" if late else "the slowest window"
        claims.append(Claim(f"a decision with {WAITING:,} waiting, {which}", slowest, "us", 50.0, AT_MOST))
    if on_gpu:
        mine, base = served[heaviest][best[FUSE]], served[heaviest][SEQUENTIAL]
        merged = served[heaviest][best[MERGE]]["per_second"] / base["per_second"]
        claims.append(Claim("merge alone: throughput, times sequential", merged, "x", 2.1))
        goals = (("per_second", 2.7), ("execution_s", 0.53), ("delay_mean_s", 0.5), ("delay_p99_s", 0.37))
        for key, goal in goals:
            direction = AT_LEAST if key == "per_second" else AT_MOST
            name = f"at {heaviest:g} times capacity: {FIGURES[key]}, times sequential"
            claims.append(Claim(name, mine[key] / base[key], "x", goal, direction))
    return claims


def panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Fig. 5: figures of the best of each kind at the heaviest load, in parts of sequential execution's."""
    chosen = best_of_each(rows)
    shown = [row for row in at_heaviest(rows) if row["rival"] in chosen]
    (base,) = (row for row in shown if row["rival"] == SEQUENTIAL)
    return [
        Panel(f"{name}, sequential = 1", "", {row["rival"]: [row[key] / base[key]] for row in shown})
        for key, name in FIGURES.items()
    ]


def main() -> int:
    """Run the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--requests", type=int, metavar="N", help="of each trace")
    parser.add_argument("--load", type=float, nargs="+", metavar="X", help="in parts of sequential capacity")
    parser.add_argument("--window", type=int, nargs="+", metavar="N", help="requests that are looked at")
    parser.add_argument("--turns", type=int, metavar="N", help="of each rival with each trace")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    chosen = parser.parse_args()
    deliver(run(choose_device(chosen.device), extent_of(chosen)), chosen)
    return 0


def extent_of(chosen: argparse.Namespace) -> Extent:
    """What the arguments ask for."""
    asked = {"requests": chosen.requests, "loads": chosen.load, "windows": chosen.window, "turns": chosen.turns}
    extent = QUICK if chosen.quick else FULL
    return replace(extent, **{name: value for name, value in asked.items() if value is not None})


if __name__ == "__main__":
    sys.exit(main())
