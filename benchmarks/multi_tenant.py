"""Requests of several models on one processor: one by one, side by side, by turns, merged, merged and fused.

The paper's load (§III): requests of AlexNet, ResNet-18 and VGG-16, a third each, that come as a Poisson process, at
parts and multiples of what one-by-one execution was measured to serve; and three requests alone (Fig. 6). All rivals
serve the same seeded trace with the same prepared models on the same images, by turns, so that a machine that gets
slower does so for all. At the heaviest load every window and count of workers is tried, at the others the best of
each. On a GPU all launch CUDA graphs that were recorded beforehand, but for breadth-first order, whose kernels are
launched one by one (``launches`` in its rows). Throughput, mean execution, mean and p99 queueing delay are shown in
parts of those of sequential execution, as in Fig. 5. The bound is what each model's best batch takes an image, on a CPU
in the better of two ways: each operation on all cores, or each core with a batch of its own. It is run before each
rival, in the same turns. All are medians.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    Serve,
    poisson_trace,
    sequential,
)

from split_infer_ros.pipeline.process import prepare_process
from split_infer_ros.split.cores import all_cores
from split_infer_ros.split.load import choose_device, load_model
from split_infer_ros.telemetry.report import AT_LEAST, AT_MOST, Claim, Panel, Report, arguments, deliver, show
from split_infer_ros.tenancy.costs import Costs
from split_infer_ros.tenancy.measure import Runner, blank, measure
from split_infer_ros.tenancy.request import DROP, FINISH, Request, RequestQueue
from split_infer_ros.tenancy.scheduler import Rules, decide
from split_infer_ros.tenancy.side_by_side import SideBySide
from split_infer_ros.tenancy.ways import Ways

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
    """

    requests: int
    loads: Sequence[float]
    windows: Sequence[int]
    sizes: Sequence[int]
    rounds: int
    few: int
    turns: int


QUICK = Extent(45, (3.0,), (8,), (1, 2), 1, 2, 1)  # at lighter loads so few hardly ever wait
FULL = Extent(1000, (0.5, 1.0, 3.0), (5, 8, 16, 32), (1, 2, 4, 8), 3, 20, 1)


class Ground:
    """What the rivals run on: the models, what executions of theirs cost, and the bound.

    Args:
        load: the models.
        extent: how much is measured.
    """

    def __init__(self, load: Load, extent: Extent) -> None:
        self._load = load
        self._whole = load.new_engine()
        count = 0 if self._whole.is_asynchronous or all_cores() == 1 else all_cores()
        self._lanes = SideBySide([load.new_engine(cores=1) for _ in range(count)]) if count else None
        whole = measure(load.models, self._whole, extent.sizes, extent.rounds)
        lane = measure(load.models, self._lanes, extent.sizes, extent.rounds, fuse=False) if self._lanes else whole
        self.ways = Ways(whole, count, lane) if count else Ways(whole)
        self._samples_s: dict[str, list[float]] = {name: [] for name in load.models}

    def sample_bound(self) -> None:
        """Run each model's best batch once, in the better way."""
        for name, found in self._samples_s.items():
            on_lanes, size = best_batch(self.ways, name)
            runner: Runner = self._lanes if on_lanes and self._lanes else self._whole
            batch = self._load.batch(name, size)
            begin = time.perf_counter()
            runner.run({name: batch})
            found.append((time.perf_counter() - begin) / size / (self.ways.lanes if on_lanes else 1))

    @property
    def bound_per_second(self) -> float:
        """Images, as many of each model as of any other."""
        return len(self._samples_s) / sum(map(statistics.median, self._samples_s.values()))

    def close(self) -> None:
        """End the engines."""
        self._whole.close()
        if self._lanes:
            self._lanes.close()


def best_batch(ways: Ways, model: str) -> tuple[bool, int]:
    """Whether on lanes, and of how many images, as was measured."""
    found = [(seconds / size, False, size) for size, seconds in ways.whole.alone_s[model].items()]
    if ways.lanes:
        found += [(seconds / size / ways.lanes, True, size) for size, seconds in ways.lane.alone_s[model].items()]
    return min(found)[1:]


def run(device: torch.device, extent: Extent) -> Report:
    """Measure costs, then serve the same traces in every way, the heaviest load first."""
    models = {name: load_model(name, "none", str(device)) for name in MODELS}
    load = Load(models, {name: torch.rand_like(blank(model, 1)) for name, model in models.items()})
    ground = Ground(load, extent)
    ways = ground.ways
    capacity = len(models) / sum(ways.whole.batch_s(name, 1) for name in models)
    rows: list[dict[str, Any]] = []

    def add(*found: dict[str, Any]) -> None:
        rows.extend(found)
        for row in found:
            show(row)

    add(*batches(ways, extent.sizes))
    left = rivals(ways, extent.windows)
    for rival in left.values():
        if isinstance(rival, Concurrent):
            rival.check(load)
    for part in sorted(extent.loads, reverse=True):
        heaviest = part == max(extent.loads)
        trace = poisson_trace(MODELS, extent.requests, part * capacity)
        found = serve_in_turns(left, trace, load, extent.turns, ground.sample_bound if heaviest else lambda: None)
        if heaviest:
            add({"what": "bound", "per_second": ground.bound_per_second})
        add(*(served(part, name, turns, device) for name, turns in found.items()))
        left = {name: left[name] for name in best_of_each(rows)}
    ground.close()
    add(*three_requests(load, ways, extent.few))
    load.close()
    add(*scheduler_cost(ways.whole, extent.windows))
    return Report("multi_tenant", conclude(rows, device.type == "cuda"), rows, panels(rows))


def served(
    load: float, rival: str, turns: Sequence[Mapping[str, float]], device: torch.device
) -> dict[str, Any]:
    """A row: what became of a trace, and on a GPU whether that was launched as graphs or kernel by kernel."""
    launches = {"launches": "kernels" if kind(rival) == BREADTH_FIRST else "graphs"} if device.type == "cuda" else {}
    return {"what": "poisson", "load": load, "rival": rival} | launches | medians(turns)


def serve_in_turns(
    ways: Mapping[str, Serve], trace: Sequence[Request], load: Load, turns: int, between: Callable[[], None]
) -> dict[str, list[dict[str, float]]]:
    """What became of the trace in each way, turn by turn; another one begins each turn."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    names = list(ways)
    for _ in range(turns):
        for name in names:
            between()
            found[name].append(facts(ways[name](trace, load)))
        names.append(names.pop(0))
    return found


def rivals(ways: Ways, windows: Sequence[int]) -> dict[str, Serve]:
    """By name; ours once for each window, side by side once for each count of workers."""
    found: dict[str, Serve] = {SEQUENTIAL: sequential}
    for workers in (2**power for power in range(1, max(2, all_cores()).bit_length())):
        found[f"{CONCURRENT}, {workers} workers"] = Concurrent(workers)
    found[BREADTH_FIRST] = BreadthFirst(len(MODELS))
    for window in windows:
        found[f"{MERGE}, window {window}"] = Scheduled(Ways(ways.whole), Rules(window, fuse=False))
        found[f"{FUSE}, window {window}"] = Scheduled(ways, Rules(window))
    return found


def kind(rival: str) -> str:
    """Its name without its window or its count of workers."""
    return rival.partition(",")[0]


def best_of_each(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """At the heaviest load, of each kind the one that serves most."""
    best: dict[str, Mapping[str, Any]] = {}
    for row in at_heaviest(rows):
        name = kind(row["rival"])
        if name not in best or row["per_second"] > best[name]["per_second"]:
            best[name] = row
    return [row["rival"] for row in best.values()]


def at_heaviest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What was served at the heaviest load."""
    served = [row for row in rows if row["what"] == "poisson"]
    heaviest = max(row["load"] for row in served)
    return [row for row in served if row["load"] == heaviest]


def batches(ways: Ways, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """What images were measured to take: on all cores, and where each core has a lane, a lane's share of the time."""
    for name in MODELS:
        for size in sizes:
            row = {"what": "batch", "model": name, "size": size, "image_s": ways.whole.batch_s(name, size) / size}
            yield row | ({"lanes_s": ways.lane.batch_s(name, size) / size / ways.lanes} if ways.lanes else {})


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


def three_requests(load: Load, ways: Ways, turns: int) -> list[dict[str, Any]]:
    """One request of each model at once, again and again; the rivals take turns (Fig. 6)."""
    trace = [Request(number, model, model, 0.0) for number, model in enumerate(MODELS)]
    both: dict[str, Serve] = {SEQUENTIAL: sequential, FUSE: Scheduled(ways, Rules())}
    found = serve_in_turns(both, trace, load, turns, lambda: None)
    return [
        {"what": "three requests", "rival": name} | {"per_second": medians(each)["per_second"]}
        for name, each in found.items()
    ]


def scheduler_cost(costs: Costs, windows: Sequence[int], rounds: int = 60) -> list[dict[str, Any]]:
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
            least = min(row[key] for row in others)
            claims.append(Claim(f"{at}: {name}, times the best rival's", mine[key] / least, "x", 1, AT_MOST))
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
    prepare_process()
    deliver(run(choose_device(chosen.device), extent_of(chosen)), chosen)
    return 0


def extent_of(chosen: argparse.Namespace) -> Extent:
    """What the arguments ask for."""
    asked = {"requests": chosen.requests, "loads": chosen.load, "windows": chosen.window, "turns": chosen.turns}
    extent = QUICK if chosen.quick else FULL
    return replace(extent, **{name: value for name, value in asked.items() if value is not None})


if __name__ == "__main__":
    sys.exit(main())
