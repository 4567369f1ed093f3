"""Tuning: what it gains on this machine, against makers' libraries, and how soon it finds the best.

- Each model as built, as it runs untuned, as tuned in so many seconds, and by the vendors' libraries, taking turns in
  the same run: the paper's Table 5 in form, and its Tables 1 to 3 for the vendors, which are ONNX Runtime and OpenVINO
  on a CPU and cuDNN on a GPU. Batch 1, fp32, all cores, the network alone.
- A small space of one model (forms, threads, batch sizes) measured exhaustively; then guided, random and exhaustive
  search are replayed on what was recorded, 20 times each: best so far after each trial and in time (of the trials
  then, and of what the search itself needs now), and trials and seconds until within 5 % of the best that there is.
- What the next start needs to read its record.

A full run takes many minutes; `--models A B` tunes these alone, `--models` with none compares searches alone, and
`--add-to FILE` takes over what such a run measured before, so that parts may be measured one by one.

Needs torch, torchvision and scikit-learn: from the source tree, `PYTHONPATH=. python benchmarks/tuning.py`.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.tuning`
from _vendor_networks import VENDORS, Run, vendors_of

from split_infer_ros.pipeline.process import prepare_process
from split_infer_ros.split.cores import use_all_cores, use_one_core
from split_infer_ros.split.form import Form
from split_infer_ros.split.load import build_model, choose_device, load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.machine import cores
from split_infer_ros.telemetry.report import AT_MOST, Claim, Curve, Panel, Report, arguments, deliver, show
from split_infer_ros.tuner.known import Tuned, find_tuned
from split_infer_ros.tuner.spaces import NETWORK, network_space
from split_infer_ros.tuner.trial_process import TrialProcess
from split_infer_ros.tuner.trials import Trials, timed
from split_infer_ros.tuner.tune import Tuner, network_task
from split_infer_ros.tuning.database import Database
from split_infer_ros.tuning.key import Key
from split_infer_ros.tuning.search import Exhaustive, Guided, Random, Search, best_so_far, replay
from split_infer_ros.tuning.space import Frozen, Space, frozen

BUILT, UNTUNED, TUNED = "as built", "untuned", "tuned"
GUIDED, RANDOM, EXHAUSTIVE = "guided", "random", "exhaustive"
GOALS = {"mobilenet_v2": 1.5, "squeezenet1_0": 1.5, "ssdlite320": 1.5, "resnet50": 1.25}  # times as built
OF_VENDORS = 0.9
WITHIN = 0.95  # of the best that there is
REPLAYS = 20
WARM_UP = 3
PAUSE_S = 0.05  # in which one rival's waiting threads go to sleep


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        models: that are tuned.
        seconds: for which each is.
        rounds, group_s: turns of each rival, and seconds a turn.
        batch_sizes: of the space that is searched.
        searched: the model whose space that is.
        trial_s: of each of its configurations, after which a doubtful measurement is not repeated.
        quick_export: whether a vendor's network is exported in the quick way.
    """

    models: Sequence[str]
    seconds: float
    rounds: int
    group_s: float
    batch_sizes: Sequence[int]
    searched: str = "mobilenet_v2"
    trial_s: float = 2.0
    quick_export: bool = False


QUICK = Extent(("mobilenet_v2",), 12.0, 3, 0.15, (1,), trial_s=0.6, quick_export=True)
FULL = Extent((*GOALS, "resnet18", "efficientnet_b2", "shapes", "ssd300"), 40.0, 5, 0.3, (1, 2, 4, 8))


def run(
    extent: Extent, device: torch.device, searches: bool = True, before: Sequence[Mapping[str, Any]] = ()
) -> Report:
    """Measure everything.

    Args:
        extent: how much.
        device: where networks run.
        searches: whether these are compared.
        before: rows of an earlier run; those of what is measured now are left out.
    """
    rows: list[Mapping[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(folder, "tuning.jsonl"))
        for name in extent.models:
            rows.append(contest(name, device, database, extent))
            show({name: value for name, value in rows[-1].items() if name != "samples"})
    if searches:
        rows += compare_searches(record_costs(extent, device))
    now = {_subject(row) for row in rows}
    rows = [row for row in before if _subject(row) not in now] + rows
    return Report("tuning", conclude(rows), rows, panels_of(rows))


def _subject(row: Mapping[str, Any]) -> str:
    return str(row["model" if row["what"] == "model" else "search"])


def panels_of(rows: Sequence[Mapping[str, Any]]) -> list[Panel | Curve]:
    """What a picture shows of rows."""
    panels: list[Panel | Curve] = [Panel(row["model"], "ms", row["samples"]) for row in rows if row["what"] == "model"]
    searches = {row["search"]: row for row in rows if row["what"] == "search"}
    if searches:
        panels.append(Panel("trials until within 5 %", "", {name: row["trials"] for name, row in searches.items()}))
    timed_ones = {name: row for name, row in searches.items() if "seconds_so_far" in row}  # an earlier run's had none
    if timed_ones:
        points = {
            name: list(zip(row["seconds_so_far"], row["best_so_far_ms"], strict=True))
            for name, row in timed_ones.items()
        }
        panels.append(Curve("best so far, until within 5 %", "seconds of search", "ms an image", points))
    return panels


def contest(name: str, device: torch.device, database: Database, extent: Extent) -> dict[str, Any]:
    """Tune a model, then let all that can run it take turns; medians and samples in milliseconds."""
    model = load_model(name, "random", str(device))
    told = {"name": name, "weights": "random", "device": str(device), "allow_user_code": False}
    with TrialProcess(told) as runner:
        best = Tuner(model, runner, database).tune_network(time.monotonic() + extent.seconds)
    tuned = find_tuned(model, database)
    times = take_turns(rivals(name, model, tuned, extent.quick_export), extent)
    samples = {rival: [round(1e3 * value, 3) for value in found] for rival, found in times.items()}
    return {
        "what": "model",
        "model": name,
        **{f"{rival}_ms": statistics.median(found) for rival, found in samples.items()},
        "trials": len(database.find(Key.here(str(device)), network_task(model, 1))),
        "config": {} if best is None else dict(best.config),
        "difference": math.nan if best is None else best.facts.get("difference", math.nan),
        "read_ms": 1e3 * tuned.read_s,
        "samples": samples,
    }


def rivals(name: str, model: SplitModel, tuned: Tuned, quick_export: bool) -> dict[str, Run]:
    """Ways to run a network on one image."""
    _, module = build_model(name, "random")
    module = module.to(model.device)
    images = torch.randn((1, *model.entry.image_shape), generator=torch.Generator().manual_seed(0)).to(model.device)
    laid_out = images.contiguous(memory_format=torch.channels_last)
    untuned = model.backbone("output")
    best = load_model(name, "random", str(model.device), form=tuned.form).backbone("output")
    threads = tuned.threads[0]

    def run_on_fewer() -> None:
        torch.set_num_threads(threads)
        best(laid_out)
        use_all_cores()

    run_tuned = run_on_fewer if threads not in (0, cores()) else lambda: best(laid_out)
    ours = {BUILT: lambda: module(images), UNTUNED: lambda: untuned(laid_out), TUNED: run_tuned}
    ways = {**ours, **vendors_of(module, images, cores(), quick_export)}
    return {way: to_its_end(call, model.device) for way, call in ways.items()}


def to_its_end(call: Run, device: torch.device) -> Run:
    """The call, which returns when the GPU, if there is one, has done it."""
    if device.type != "cuda":
        return call

    def run() -> None:
        call()
        torch.cuda.synchronize(device)

    return run


def take_turns(ways: Mapping[str, Run], extent: Extent) -> dict[str, list[float]]:
    """Seconds of each way's calls; in each round each has a turn, in another order each time."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    use_all_cores()
    with torch.inference_mode():
        for turn in range(extent.rounds):
            order = list(ways)
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                time.sleep(PAUSE_S)
                for _ in range(WARM_UP):
                    ways[name]()
                times[name] += timed(ways[name], extent.group_s)
    use_one_core()
    return times


@dataclass(frozen=True)
class Recorded:
    """A space, and of each of its configurations what an image costs and what its trial took, seconds."""

    space: Space
    costs: Mapping[Frozen, float]
    took: Mapping[Frozen, float]


def record_costs(extent: Extent, device: torch.device) -> Recorded:
    """Try all of a space of forms, threads and batch sizes."""
    base = network_space(cores(), device=device.type, compilers=False)
    slowest_first = {"convolutions": base.knobs["convolutions"][::-1], "batch_size": tuple(extent.batch_sizes)}
    space = Space({**base.knobs, **slowest_first}, base.excludes)
    trials = Trials(extent.searched, "random", str(device), False)
    trials.model(Form(), "fp32")
    costs, took = {}, {}
    for config in space:
        plain = {name: value for name, value in config.items() if name != "batch_size"}
        size, begin = int(config["batch_size"]), time.perf_counter()
        answer = trials.run(NETWORK, plain, {"batch_size": size}, extent.trial_s)
        took[frozen(config)] = time.perf_counter() - begin
        costs[frozen(config)] = statistics.median(answer["costs"]) / size
    return Recorded(space, costs, took)


def compare_searches(recorded: Recorded) -> list[Mapping[str, Any]]:
    """Replays of each search: trials and seconds until near the best, and the median best so far after each trial."""
    space, goal = recorded.space, min(recorded.costs.values()) / WITHIN

    def make(kind: str, seed: int) -> Search:
        return {GUIDED: Guided, RANDOM: Random}[kind](space, seed) if kind != EXHAUSTIVE else Exhaustive(space)

    rows: list[Mapping[str, Any]] = []
    for kind in (GUIDED, RANDOM, EXHAUSTIVE):
        bests: list[list[float]] = []
        seconds: list[list[float]] = []
        for seed in range(1 if kind == EXHAUSTIVE else REPLAYS):
            begin = time.perf_counter()
            tried = replay(make(kind, seed), recorded.costs, goal)  # it ends at the goal
            proposing_s = (time.perf_counter() - begin) / len(tried)
            bests.append(best_so_far(tried))
            took = (recorded.took[frozen(each.config)] + proposing_s for each in tried)
            seconds.append(list(itertools.accumulate(took)))
        trials = [float(len(curve)) for curve in bests]
        until = [curve[-1] for curve in seconds]
        rows.append(
            {
                "what": "search",
                "search": kind,
                "space": len(space),
                "trials_median": statistics.median(trials),
                "trials": trials,
                "seconds_median": statistics.median(until),
                "seconds": until,
                "best_so_far_ms": [1e3 * value for value in _medians(bests)],
                "seconds_so_far": _medians(seconds),
            }
        )
        print(
            f"{kind}: within 5 % of the best after {rows[-1]['trials_median']:g} of {len(space)} trials, "
            f"{rows[-1]['seconds_median']:.1f} s (medians)",
            flush=True,
        )
    return rows


def _medians(curves: Sequence[Sequence[float]]) -> list[float]:
    """After each trial; what has ended stays as it was."""
    most = max(map(len, curves))
    return [statistics.median(curve[min(turn, len(curve) - 1)] for curve in curves) for turn in range(most)]


def conclude(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """The goals."""
    models = [row for row in rows if row["what"] == "model"]
    goals = [row for row in models if row["model"] in GOALS]
    claims = [
        Claim(f"{name}, tuned, times as built", row[f"{BUILT}_ms"] / row[f"{TUNED}_ms"], "x", GOALS[name])
        for row in goals
        for name in [row["model"]]
    ]
    against = {row["model"]: times_vendors(row) for row in goals}
    claims += [
        Claim(f"{name}, tuned, times the best vendor's library", value, "x", OF_VENDORS)
        for name, value in against.items()
    ]
    claims.append(Claim("the best of these", max(against.values(), default=math.nan), "x", 1.0))
    differences = [row["difference"] for row in models]
    claims.append(Claim("results differ by, most", max(differences, default=math.nan), "", 1e-4, AT_MOST))
    reads = [row["read_ms"] for row in models]
    claims.append(Claim("the next start reads its record in, most", max(reads, default=math.nan), "ms", 100.0, AT_MOST))
    trials = {row["search"]: row["trials_median"] for row in rows if row["what"] == "search"}
    share = trials[GUIDED] / trials[RANDOM] if trials else math.nan
    claims.append(Claim("guided, of random's trials until within 5 %", share, "x", 0.5, AT_MOST))
    return claims


def times_vendors(row: Mapping[str, Any]) -> float:
    """How many times our time the best vendor's is; NaN where none took part."""
    found = [row[f"{name}_ms"] for name in VENDORS if f"{name}_ms" in row]
    return min(found) / row[f"{TUNED}_ms"] if found else math.nan


def main() -> int:
    """Run the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="*", metavar="NAME", help="tune these alone")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    parser.add_argument("--add-to", type=Path, metavar="FILE", help="an earlier run's JSON, of which the rest is kept")
    chosen = parser.parse_args()
    prepare_process()
    extent = QUICK if chosen.quick else FULL
    if chosen.models is not None:
        extent = replace(extent, models=tuple(chosen.models))
    before = json.loads(chosen.add_to.read_text())["rows"] if chosen.add_to else []
    deliver(run(extent, choose_device(chosen.device), not chosen.models, before), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
