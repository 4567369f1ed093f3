"""Compares split inference with the whole model on the GPU: the table of paper 000 (§6), on this machine.

Each model runs in several configurations, which get the same images, already resized:

- `baseline, as built`: the whole model, one batch after another. The paper's gains are over this configuration.
- `baseline, prepared`: the whole model with the preparation that the split model gets as well: folded, channels last,
  packed. The gain over this configuration is due only to splitting.
- `optimised`: the prepared model with page-locked memory, prefetching and CUDA graphs, all asynchronous.
- `split, planner's split point`: our pipeline at the split point that the planner takes from a profile of the same run.
- `split, paper's split point`: our pipeline, split between the features and the classifier (§4.4), or before the heads
  of a detector. If both split points are the same, they share a row.
- `split, planner's split point, two processes`: backbone and head are two processes with slots in shared memory, as
  the paper's two workers are. Its memory and processor time are those of the backbone's process.
- `split, split point ...`: the best other fixed split points, at the smallest batch size.

Without a GPU, all of them run on the CPU. The weights are seeded, and the outputs depend on the images. Agreement is
the share of results whose best class is the baseline's. A detector's threshold leaves some hundreds of candidates per
image, as after training.

All configurations at one batch size take turns of several batches each, in changing order. The clock of a turn starts
with its first result and stops while further batches are in flight. So neither filling nor draining a pipeline is
timed. The latency of a batch reaches from the first of its images to the last of its results. `backbone_busy` and
`head_busy` are the shares of the timed seconds in which each stage works. Overlap efficiency is the time that the
slower stage takes for a batch alone, divided by the measured time between two batches. Its limit is 1.

`copy_calls` counts the copies of one batch from the pre-processed images to the head's outputs, on a GPU under policy
`pinned`. `copy_calls_added` leaves out those that the model's own operators make without a split. The paper saw no
`cudaMemcpy` in its split runs (§7.3). `copy_calls.py` says what counts as a copy.

A run that is not quick measures as many images of each configuration as `--samples` says. That takes hours on a CPU.
The report is written again after each batch size. The benchmark needs torch and torchvision only. From the source tree:
`PYTHONPATH=. python benchmarks unified_splitting`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.common.claim import format_duration
from benchmarks.common.report import arguments, deliver, seconds_for_turns, show
from benchmarks.common.turns import Contest, take_turns
from benchmarks.unified_splitting.claims import claims_of, conclude
from benchmarks.unified_splitting.contest import Match, MatchResult
from benchmarks.unified_splitting.subject import SplitExtent, Subject
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.server.profiling.profiler import Effort
from split_infer_ros.split.load import choose_device

MODELS = ("mobilenet_v2", "efficientnet_b2", "vit_tiny", "resnet18")
DETECTORS = ("ssdlite320", "ssd300")
SAMPLES = 4096
QUICK = SplitExtent(
    batch_sizes=[16],
    min_samples=0,
    turn_s=0.2,
    profile_effort=Effort(rounds=1, warm_up=1, batches=2, seconds=0, runs=0, max_s=0),
    num_fixed=0,
    num_tried=2,
)
FULL = SplitExtent(
    batch_sizes=[16, 32, 64, 128],
    min_samples=SAMPLES,
    turn_s=2.0,
    profile_effort=Effort(max_s=60.0),
    num_fixed=2,
    num_tried=0,
)
PROGRESS_S = 60.0  # time between two lines of progress


def measure_quickly(
    names: Sequence[str], device: torch.device, *, extent: SplitExtent, chosen: argparse.Namespace
) -> list[MatchResult]:
    """Measures all models at all batch sizes together, and returns their results.

    Most turns go to the contest with the widest interval.
    """
    matches = []
    for name in names:
        subject = Subject(name, device, extent)
        smallest = min(extent.batch_sizes)
        matches += [
            Match(subject, size, with_fixed_split_points=size == smallest, conclude=claims_of)
            for size in extent.batch_sizes
        ]
    take_turns([match.contest for match in matches], seconds_for_turns(chosen, 0.0))
    results = [match.result() for match in matches]
    for match in matches:
        match.close()
    return results


def measure_fully(
    names: Sequence[str], device: torch.device, *, extent: SplitExtent, chosen: argparse.Namespace
) -> list[MatchResult]:
    """Measures one batch size of one model after another, until each configuration has its samples.

    Returns the results. The large batches of all models would not fit into memory at once.
    """
    results: list[MatchResult] = []
    for name in names:
        print(f"{name}: profile at batch {', '.join(map(str, extent.batch_sizes))}", flush=True)
        subject = Subject(name, device, extent)
        for size in extent.batch_sizes:
            match = Match(subject, size, with_fixed_split_points=size == min(extent.batch_sizes))
            if chosen.seconds is None:
                turns = math.ceil(extent.min_samples / (size * match.batches_a_turn))
                take_all(match.contest, turns)
            else:
                take_turns([match.contest], chosen.seconds / len(names) / len(extent.batch_sizes))
            results.append(match.result())
            match.close()
            deliver(conclude(results, device.type == "cuda"), chosen)
    return results


def take_all(contest: Contest, turns: int) -> None:
    """Runs turns of a contest until it has ``turns`` turns, and prints the progress every minute."""
    next_line = 0.0
    while contest.turns < turns:
        if time.monotonic() >= next_line:
            left = f", about {format_duration((turns - contest.turns) * contest.turn_s)} left" if contest.turns else ""
            print(f"{contest.name}: {contest.turns} of {turns} turns{left}", flush=True)
            next_line = time.monotonic() + PROGRESS_S
        contest.take()


def main() -> int:
    """Runs the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--models", nargs="+", metavar="NAME", help="default: the paper's and ResNet-18; on a GPU also two SSDs"
    )
    parser.add_argument("--batch", nargs="+", type=int, metavar="N", help="batch sizes")
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, metavar="N", help="images of each configuration; ignored with --quick"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    chosen = parser.parse_args()
    prepare_process()
    device = choose_device(chosen.device)
    names = chosen.models or default_models(device.type == "cuda", chosen.quick)
    measure = measure_quickly if chosen.quick else measure_fully
    results = measure(names, device, extent=extent_of(chosen), chosen=chosen)
    report = conclude(results, device.type == "cuda")
    for row in report.rows:
        show(row)
    deliver(report, chosen)
    return 0


def default_models(on_gpu: bool, quick: bool) -> Sequence[str]:
    """Returns the names of as many models as there is time for. In a minute, a CPU runs ten turns of one model."""
    if quick:
        return MODELS[::3] if on_gpu else MODELS[:1]
    return MODELS + DETECTORS if on_gpu else MODELS


def extent_of(chosen: argparse.Namespace) -> SplitExtent:
    """Returns the extent that the arguments ask for."""
    samples = chosen.samples if chosen.seconds is None else 0
    extent = QUICK if chosen.quick else replace(FULL, min_samples=samples)
    return replace(extent, batch_sizes=sorted(chosen.batch)) if chosen.batch else extent


if __name__ == "__main__":
    sys.exit(main())
