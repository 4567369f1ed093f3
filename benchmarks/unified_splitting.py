"""Split inference against the whole model on the GPU, plain and optimised: the paper's table, on this machine (§6).

Each model runs in three configurations, which take the same pictures, already resized: `baseline`, the model as built,
one batch after the other; `optimised`, the prepared model with page-locked memory, prefetching and CUDA graphs, all
asynchronous; `split`, our pipeline, cut where the planner has it from a profile made in the same run. Without a GPU all
three run on the CPU. Weights are seeded ones under which the outputs depend on the pictures; agreement is the part of
the pictures whose best class is the baseline's. A detector's threshold is one that leaves some hundreds of candidates
in a picture, as after training; the GPU's rivals also suppress their overlaps there.

What is predicted is the median time between two batches, as in the profile; throughput counts all the time that passed.
Overlap efficiency is the measured throughput times what the slower of the two stages takes for a batch alone; 1 is the
limit. Latency is of a batch, from the first of its pictures taken to the last of its results.

Needs torch and torchvision only: from the source tree, `PYTHONPATH=. python benchmarks/unified_splitting.py`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.unified_splitting`
from _split_contest import Contest, Extent, Run

from split_infer_ros.pipeline.process import prepare_process
from split_infer_ros.pipeline.profiler import Effort
from split_infer_ros.split.load import choose_device
from split_infer_ros.split.planner import Choice, plan
from split_infer_ros.telemetry.report import AT_MOST, Claim, Panel, Report, arguments, deliver, show

BASELINE, OPTIMISED, SPLIT = "baseline", "optimised", "split"
MODELS = ("mobilenet_v2", "efficientnet_b2", "vit_tiny", "resnet18")
DETECTORS = ("ssdlite320", "ssd300")
QUICK_MODELS = MODELS[::3]
PAPERS_BATCH = 64
LITTLE = Effort(rounds=1, warm_up=1, batches=2, seconds=0, runs=0, most_s=0)
QUICK = Extent([16], 64, 4, 1, 2.0, LITTLE, 1, 2, 1, 1)
FULL = Extent([16, 32, 64, 128], 4096, 50, 3, math.inf, Effort(most_s=60.0), 2, 0, 9, len(MODELS))


def compare(name: str, device: torch.device, extent: Extent, with_fixed_cuts: bool) -> list[dict[str, Any]]:
    """One model's rows: a row for each configuration at each batch size, and one for the fixed cuts."""
    contest = Contest(name, device, extent)
    profile = contest.profile()
    rows: list[dict[str, Any]] = []
    for batch_size in extent.batch_sizes:
        choice = plan(profile, batch_sizes=[batch_size])
        runs = {
            BASELINE: contest.baseline(batch_size),
            OPTIMISED: contest.optimised(batch_size),
            SPLIT: contest.split(choice.cut, batch_size),
        }
        for configuration, run in runs.items():
            row = {
                "model": name,
                "batch_size": batch_size,
                "configuration": configuration,
                "images_per_s": batch_size / run.period_s,
                "latency_ms": 1e3 * run.latency_s,
                "agreement": run.agreement(contest.labels),
                "batches": run.count,
            }
            if configuration == SPLIT:
                row |= split_facts(contest, choice, run)
            rows.append(row)
            show(row)
    if not with_fixed_cuts:
        return rows
    smallest = min(extent.batch_sizes)
    auto = plan(profile, batch_sizes=[smallest]).cut
    ratio, rival = contest.against_fixed_cuts(auto, smallest)
    rows.append(
        {"model": name, "batch_size": smallest, "configuration": "fixed cut", "cut": rival, "auto": auto,
         "auto_over_fixed": ratio}
    )  # fmt: skip
    show(rows[-1])
    return rows


def split_facts(contest: Contest, choice: Choice, run: Run) -> dict[str, Any]:
    """What only the split has: where, as predicted or not, and how well its stages overlap."""
    backbone_s, head_s = contest.stages_alone(choice.cut, choice.batch_size)
    return {
        "cut": choice.cut,
        "predicted_images_per_s": choice.throughput,
        "prediction_off": abs(choice.throughput * run.median_period_s / choice.batch_size - 1),
        "backbone_alone_ms": 1e3 * backbone_s,
        "head_alone_ms": 1e3 * head_s,
        "overlap_efficiency": max(backbone_s, head_s) / run.period_s,
    }


def conclude(rows: Sequence[dict[str, Any]], on_gpu: bool) -> Report:
    """The claims, which differ with and without a GPU, and the picture."""
    speed = {(r["model"], r["batch_size"], r["configuration"]): r["images_per_s"] for r in rows if "images_per_s" in r}
    names = list(dict.fromkeys(row["model"] for row in rows))
    sizes = list(dict.fromkeys(row["batch_size"] for row in rows))
    size = PAPERS_BATCH if PAPERS_BATCH in sizes else max(sizes)
    claims = []
    for name in names:
        of_baseline = speed[name, size, SPLIT] / speed[name, size, BASELINE]
        claims.append(Claim(f"{name}, batch {size}: split, times the baseline's", of_baseline, "x", 1.25))
    if on_gpu:
        for name in names:
            of_optimised = min(speed[name, each, SPLIT] / speed[name, each, OPTIMISED] for each in sizes)
            goal = 1.1 if name in DETECTORS else 1.0
            claims.append(Claim(f"{name}: split, times the optimised, least", of_optimised, "x", goal))
        overlap = [row["overlap_efficiency"] for row in rows if "overlap_efficiency" in row]
        claims.append(Claim("overlap efficiency, median", statistics.median(overlap), "", 0.95))
    fixed = [row["auto_over_fixed"] for row in rows if "auto_over_fixed" in row]
    claims.append(Claim("planner's cut, part of the best fixed one, least", min(fixed), "x", 0.98))
    off = [row["prediction_off"] for row in rows if "prediction_off" in row]
    claims.append(Claim("predicted throughput, off by, mean", 100 * statistics.mean(off), "%", 10.0, AT_MOST))
    agreement = [row["agreement"] for row in rows if row.get("configuration") == SPLIT]
    claims.append(Claim("best class as the baseline's, least", min(agreement), "", 0.99))
    panels = [
        Panel(
            f"{name}, images/s at batch {size}",
            "1/s",
            {configuration: [speed[name, size, configuration]] for configuration in (BASELINE, OPTIMISED, SPLIT)},
        )
        for name in names
    ]
    return Report("unified_splitting", claims, rows, panels)


def main() -> int:
    """Run the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--models", nargs="+", metavar="NAME", help="else the paper's and two SSDs (--quick: two)"
    )
    parser.add_argument("--batch", nargs="+", type=int, metavar="N", help="batch sizes")
    parser.add_argument("--most-seconds", type=float, metavar="S", help="for each configuration at each batch size")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    chosen = parser.parse_args()
    prepare_process()
    device, extent = choose_device(chosen.device), extent_of(chosen)
    rows: list[dict[str, Any]] = []
    for index, name in enumerate(chosen.models or (QUICK_MODELS if chosen.quick else MODELS + DETECTORS)):
        rows += compare(name, device, extent, with_fixed_cuts=index < extent.compared)
    deliver(conclude(rows, device.type == "cuda"), chosen)
    return 0


def extent_of(chosen: argparse.Namespace) -> Extent:
    """What the arguments ask for."""
    extent = QUICK if chosen.quick else FULL
    asked = {"batch_sizes": chosen.batch, "most_seconds": chosen.most_seconds}
    return replace(extent, **{name: value for name, value in asked.items() if value is not None})


if __name__ == "__main__":
    sys.exit(main())
