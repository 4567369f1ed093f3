"""Split inference against the whole model on the GPU: the paper's table, on this machine (§6).

Each model runs in several configurations, which get the same pictures, already resized:

- `baseline, as built`: the whole model, one batch after the other. The paper's gains are against this one.
- `baseline, prepared`: the same after the preparation that the split gets, too: folded, channels-last, packed. What
  the split has over this one is due to the split itself.
- `optimised`: the prepared model with page-locked memory, prefetching and CUDA graphs, all asynchronous.
- `split, planner's split point`: our pipeline, split where the planner has it from a
  profile that was made in the same run.
- `split, paper's split point`: the same pipeline, split behind the features and before the classifier
  (§4.4). In a detector that is before the heads. Where both split points are the same, one row says so.
- `split, split point ...`: the best other fixed split points, at the smallest batch size.

Without a GPU all of them run on the CPU. Weights are seeded ones under which the outputs depend on the pictures.
Agreement is the part of the results whose best class is the baseline's. A detector's threshold leaves some hundreds of
candidates in a picture, as after training.

All configurations at one batch size take turns of some batches each, in changing order. A turn is timed from its first
result on, and ends while further batches are under way; neither the filling nor the draining of a pipeline is timed.
Latency is of a batch, from the first of its pictures taken to the last of its results. `backbone_busy` and `head_busy`
are the shares of the timed seconds in which each stage works. Overlap efficiency is the measured throughput times what
the slower of the two stages takes for a batch alone; 1 is the limit.

A run that is not quick measures as many pictures of each configuration as `--samples` says. That takes hours on a CPU;
the report is written anew after each batch size. Needs torch and torchvision only: from the source tree,
`PYTHONPATH=. python benchmarks/unified_splitting.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.unified_splitting`
from _split_claims import claims_of, conclude
from _split_contest import Found, Match
from _split_subject import Extent, Subject

from split_infer_ros.pipeline.profiler import Effort
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.split.load import choose_device
from split_infer_ros.telemetry.claim import format_duration
from split_infer_ros.telemetry.report import arguments, deliver, seconds_for_turns, show
from split_infer_ros.telemetry.turns import Contest, take_turns

MODELS = ("mobilenet_v2", "efficientnet_b2", "vit_tiny", "resnet18")
DETECTORS = ("ssdlite320", "ssd300")
SAMPLES = 4096
LITTLE = Effort(rounds=1, warm_up=1, batches=2, seconds=0, runs=0, most_s=0)
QUICK = Extent([16], 0, 0.2, LITTLE, 0, 2)
FULL = Extent([16, 32, 64, 128], SAMPLES, 2.0, Effort(most_s=60.0), 2, 0)
REMARK_S = 60.0


def measure_quickly(
    names: Sequence[str], device: torch.device, extent: Extent, chosen: argparse.Namespace
) -> list[Found]:
    """All models at all batch sizes at once: time goes where the interval is widest."""
    matches = []
    for name in names:
        subject = Subject(name, device, extent)
        matches += [Match(subject, size, size == min(extent.batch_sizes), claims_of) for size in extent.batch_sizes]
    take_turns([match.contest for match in matches], seconds_for_turns(chosen, 0.0))
    found = [match.found() for match in matches]
    for match in matches:
        match.close()
    return found


def measure_fully(
    names: Sequence[str], device: torch.device, extent: Extent, chosen: argparse.Namespace
) -> list[Found]:
    """One batch size of one model after the other, until each configuration has its samples.

    What large batches need would not fit into memory for all of them.
    """
    found: list[Found] = []
    for name in names:
        print(f"{name}: profile at batch {', '.join(map(str, extent.batch_sizes))}", flush=True)
        subject = Subject(name, device, extent)
        for size in extent.batch_sizes:
            match = Match(subject, size, size == min(extent.batch_sizes))
            if chosen.seconds is None:
                take_all(match.contest, turns=-(-extent.samples // (size * match.batches)))
            else:
                take_turns([match.contest], chosen.seconds / len(names) / len(extent.batch_sizes))
            found.append(match.found())
            match.close()
            deliver(conclude(found, device.type == "cuda"), chosen)
    return found


def take_all(contest: Contest, turns: int) -> None:
    """Take so many turns; say every minute how far they are."""
    remark = 0.0
    while contest.turns < turns:
        if time.monotonic() >= remark:
            left = f", about {format_duration((turns - contest.turns) * contest.turn_s)} left" if contest.turns else ""
            print(f"{contest.name}: {contest.turns} of {turns} turns{left}", flush=True)
            remark = time.monotonic() + REMARK_S
        contest.take()


def main() -> int:
    """Run the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--models", nargs="+", metavar="NAME", help="else the paper's and ResNet-18, on a GPU two SSDs, too"
    )
    parser.add_argument("--batch", nargs="+", type=int, metavar="N", help="batch sizes")
    parser.add_argument("--samples", type=int, default=SAMPLES, metavar="N", help="of each configuration; not if quick")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    chosen = parser.parse_args()
    prepare_process()
    device = choose_device(chosen.device)
    names = chosen.models or default_models(device.type == "cuda", chosen.quick)
    measure = measure_quickly if chosen.quick else measure_fully
    found = measure(names, device, extent_of(chosen), chosen)
    report = conclude(found, device.type == "cuda")
    for row in report.rows:
        show(row)
    deliver(report, chosen)
    return 0


def default_models(on_gpu: bool, quick: bool) -> Sequence[str]:
    """Those for which there is time: a CPU has ten turns of one model in a minute."""
    if quick:
        return MODELS[::3] if on_gpu else MODELS[:1]
    return MODELS + DETECTORS if on_gpu else MODELS


def extent_of(chosen: argparse.Namespace) -> Extent:
    """What the arguments ask for."""
    samples = chosen.samples if chosen.seconds is None else 0
    extent = QUICK if chosen.quick else replace(FULL, samples=samples)
    return replace(extent, batch_sizes=sorted(chosen.batch)) if chosen.batch else extent


if __name__ == "__main__":
    sys.exit(main())
