"""Requests of several models on one processor: one by one, side by side, by turns, merged, merged and fused.

The paper's load (§III): requests of AlexNet, ResNet-18 and VGG-16, a third each, that come as a Poisson process, at
parts and multiples of what one-by-one execution was measured to serve; and three requests alone (Fig. 6). All rivals
run the same prepared models on the same images. Throughput, mean execution, mean and p99 queueing delay are given in
parts of those of sequential execution, as in Fig. 5. The bound is what the best batch of each model takes an image.

Needs torch and torchvision only: from the source tree, `PYTHONPATH=. python benchmarks/multi_tenant.py`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.multi_tenant`
from _tenant_rivals import BreadthFirst, Concurrent, Load, Log, Scheduled, Serve, poisson_trace, sequential

from split_infer_ros.split.model import choose_device, load_model
from split_infer_ros.telemetry.report import AT_MOST, Claim, Panel, Report, arguments, deliver
from split_infer_ros.tenancy.costs import Costs
from split_infer_ros.tenancy.measure import blank, measure
from split_infer_ros.tenancy.request import Request, RequestQueue
from split_infer_ros.tenancy.scheduler import Rules, decide

MODELS = ("alexnet", "resnet18", "vgg16")
SEQUENTIAL, CONCURRENT, BREADTH_FIRST = "sequential", "concurrent", "breadth-first"
MERGE, FUSE = "merge", "merge and fuse"
DELAYS = {"delay_mean_s": "mean delay", "delay_p99_s": "p99 delay"}
FIGURES = {"per_second": "throughput", "execution_s": "execution", **DELAYS}
WAITING = 1000


@dataclass(frozen=True)
class Extent:
    """How much is measured: requests, loads in parts of sequential capacity, windows, batch sizes, samples of costs."""

    requests: int
    loads: Sequence[float]
    windows: Sequence[int]
    sizes: Sequence[int]
    rounds: int
    few: int


QUICK = Extent(45, (1.0, 3.0), (8,), (1, 4, 8), 1, 3)
FULL = Extent(1000, (0.5, 1.0, 3.0), (5, 8, 16, 32), (1, 2, 4, 8, 16, 32), 5, 20)


def run(device: torch.device, extent: Extent) -> Report:
    """Measure costs, then serve the same traces in every way."""
    models = {name: load_model(name, "random", str(device)) for name in MODELS}
    load = Load(models, {name: torch.rand_like(blank(model, 1)) for name, model in models.items()})
    engine = load.engine(dict.fromkeys(models, 1.0))
    costs = measure(models, engine, extent.sizes, extent.rounds)
    engine.close()
    capacity = len(models) / sum(costs.batch_s(name, 1) for name in models)
    bound = len(models) / sum(min(costs.batch_s(name, size) / size for size in extent.sizes) for name in models)
    say(f"sequential capacity {capacity:.2f} requests/s, bound {bound:.2f}")
    rows: list[dict[str, Any]] = [{"what": "capacity", "per_second": capacity, "bound_per_second": bound}]
    for part in extent.loads:
        trace = poisson_trace(MODELS, extent.requests, part * capacity)
        for name, serve in rivals(costs, extent.windows).items():
            rows.append({"what": "poisson", "load": part, "rival": name} | facts(serve(trace, load)))
            say(describe(rows[-1]))
    rows += three_requests(load, costs, extent.few)
    rows += scheduler_cost(costs)
    return Report("multi_tenant", conclude(rows, device.type == "cuda"), rows, panels(rows))


def rivals(costs: Costs, windows: Sequence[int]) -> dict[str, Serve]:
    """By name; ours once for each window."""
    found: dict[str, Serve] = {
        SEQUENTIAL: sequential,
        CONCURRENT: Concurrent(2 if torch.get_num_threads() < len(MODELS) else len(MODELS)),
        BREADTH_FIRST: BreadthFirst(len(MODELS)),
    }
    for window in windows:
        found[f"{MERGE}, window {window}"] = Scheduled(costs, Rules(window, fuse=False))
        found[f"{FUSE}, window {window}"] = Scheduled(costs, Rules(window))
    return found


def facts(log: Log) -> dict[str, float]:
    """What became of a trace."""
    delays = log.delays_s
    return {
        "per_second": log.per_second,
        "execution_s": statistics.fmean(log.executions_s),
        "delay_mean_s": statistics.fmean(delays),
        "delay_p99_s": delays[min(len(delays) - 1, round(0.99 * len(delays)))],
    }


def three_requests(load: Load, costs: Costs, turns: int) -> list[dict[str, Any]]:
    """One request of each model at once, again and again; the rivals take turns (Fig. 6)."""
    trace = [Request(number, model, model, 0.0, turn_s=0.0) for number, model in enumerate(MODELS)]
    ways: dict[str, Serve] = {SEQUENTIAL: sequential, FUSE: Scheduled(costs, Rules())}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns + 1):
        for name, serve in ways.items():
            found[name].append(serve(trace, load).per_second)
    return [
        {"what": "three requests", "rival": name, "per_second": statistics.median(values[1:])}
        for name, values in found.items()
    ]


def scheduler_cost(costs: Costs, rounds: int = 200) -> list[dict[str, Any]]:
    """What a decision takes: choosing, removing what was chosen, adding as many."""
    found = []
    for waiting in (100, WAITING, 10 * WAITING):
        chance = random.Random(0)
        numbers = itertools.count()
        queue = RequestQueue()

        def arrive(queue: RequestQueue = queue, chance: random.Random = chance, numbers: Any = numbers) -> None:
            number = next(numbers)
            turn = number + chance.random()
            queue.add(Request(number, f"tenant {number % 16}", chance.choice(MODELS), 0.0, turn_s=turn))

        for _ in range(waiting):
            arrive()
        times = []
        for _ in range(rounds):
            begin = time.perf_counter()
            decision = decide(queue, costs, 0.0, Rules())
            queue.remove(decision.requests)
            times.append(time.perf_counter() - begin)
            for _ in decision.requests:
                arrive()
        found.append({"what": "decision", "waiting": waiting, "p50_us": 1e6 * statistics.median(times)})
    return found


def conclude(rows: Sequence[Mapping[str, Any]], on_gpu: bool) -> list[Claim]:
    """The claims, of which some are for a GPU."""
    (capacity,) = (row for row in rows if row["what"] == "capacity")
    served = {(row["load"], row["rival"]): row for row in rows if row["what"] == "poisson"}
    heaviest = max(part for part, _ in served)
    ours = {rival: row for (part, rival), row in served.items() if part == heaviest and rival.startswith(f"{FUSE},")}
    best = max(ours, key=lambda rival: ours[rival]["per_second"])
    mine, base = ours[best], served[heaviest, SEQUENTIAL]
    times = {key: mine[key] / base[key] for key in FIGURES}
    others = [served[heaviest, rival] for rival in (SEQUENTIAL, CONCURRENT, BREADTH_FIRST)]
    few = {row["rival"]: row["per_second"] for row in rows if row["what"] == "three requests"}
    decision = {row["waiting"]: row["p50_us"] for row in rows if row["what"] == "decision"}
    gap = capacity["bound_per_second"] - base["per_second"]
    at = f"at {heaviest:g} times capacity, {best}"
    claims = [
        Claim(f"{at}: part of the gap to the bound", (mine["per_second"] - base["per_second"]) / gap, "", 0.7),
        *(
            Claim(f"{at}: {name}, times the best rival's", mine[key] / min(row[key] for row in others), "x", 1, AT_MOST)
            for key, name in DELAYS.items()
        ),
        Claim("three requests: throughput, times sequential", few[FUSE] / few[SEQUENTIAL], "x", 0.97),
        Claim(f"a decision with {WAITING:,} waiting", decision[WAITING], "us", 50.0, AT_MOST),
    ]
    if on_gpu:
        merged = max(
            row["per_second"]
            for (part, rival), row in served.items()
            if part == heaviest and rival.startswith(f"{MERGE},")
        )
        claims.append(Claim("merge alone: throughput, times sequential", merged / base["per_second"], "x", 2.1))
        claims.append(Claim(f"{at}: throughput, times sequential", times["per_second"], "x", 2.7))
        for key, goal in (("execution_s", 0.53), ("delay_mean_s", 0.5), ("delay_p99_s", 0.37)):
            claims.append(Claim(f"{at}: {FIGURES[key]}, times sequential", times[key], "x", goal, AT_MOST))
    return claims


def panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Fig. 5: each rival's figures at the heaviest load, in parts of sequential execution's."""
    served = [row for row in rows if row["what"] == "poisson"]
    heaviest = max(row["load"] for row in served)
    shown = [row for row in served if row["load"] == heaviest]
    (base,) = (row for row in shown if row["rival"] == SEQUENTIAL)
    return [
        Panel(f"{name}, sequential = 1", "", {row["rival"]: [row[key] / base[key]] for row in shown})
        for key, name in FIGURES.items()
    ]


def describe(row: Mapping[str, Any]) -> str:
    """One row for people."""
    return ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else str(value) for key, value in row.items())


def say(line: str) -> None:
    """At once."""
    print(line, flush=True)


def main() -> int:
    """Run the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--requests", type=int, metavar="N", help="of each trace")
    parser.add_argument("--load", type=float, nargs="+", metavar="X", help="in parts of sequential capacity")
    parser.add_argument("--window", type=int, nargs="+", metavar="N", help="requests that are looked at")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    chosen = parser.parse_args()
    deliver(run(choose_device(chosen.device), extent_of(chosen)), chosen)
    return 0


def extent_of(chosen: argparse.Namespace) -> Extent:
    """What the arguments ask for."""
    asked = {"requests": chosen.requests, "loads": chosen.load, "windows": chosen.window}
    extent = QUICK if chosen.quick else FULL
    return replace(extent, **{name: value for name, value in asked.items() if value is not None})


if __name__ == "__main__":
    sys.exit(main())
