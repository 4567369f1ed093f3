"""What merged and fused kernels load, and what they take of a GPU (paper 001, sections II-B and III).

The paper's models are AlexNet, ResNet-18 and VGG-16, with images of 224 x 224 pixels. For each convolution and dense
layer, three ways to serve some requests are counted:

- separate: a launch for each request.
- batch: a launch of the package's template of convolutions, with all requests as one batch.
- merged: a launch of the merged kernel, which loads a tile of weights once for all requests (Algorithm 1).

All three divide the layer into the same tiles. A load is one element that a thread asks for. Triton's interpreter
counts those of one program, and each program of a launch has as many. A fused kernel (Algorithm 2) has the loads of its
two layers, so the sums are those of windows with several models too.

The compiler says which registers and which shared memory programs take on four GPUs. This decides which of the n-th
layers of AlexNet and ResNet-18, the paper's small models, can be fused: programs of both must fit on one
multiprocessor.

Every run of the same versions finds the same numbers, and nothing is timed. It needs only torch, torchvision and
Triton, and no GPU. In the source tree, `PYTHONPATH=. python benchmarks merged_kernels` runs it. A quick run
counts five requests of one model, and compiles pairs for one GPU.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.common.claim import Claim
from benchmarks.common.estimate import exact
from benchmarks.common.gpu_targets import MULTIPROCESSORS
from benchmarks.common.report import Report, run_command, show
from benchmarks.merged_kernels.counts import SECOND, WINDOW, Counts, Extent, pairs_of, saved
from benchmarks.merged_kernels.layers import MODELS

ORIN = 87  # the paper's GPU
LEAST, MOST = 27.0, 40.0  # percent fewer load instructions, by the paper
FULL = Extent(MODELS, range(1, WINDOW + 1), (2, WINDOW), ((1, 1), (2, 2), (4, 2)), tuple(MULTIPROCESSORS))
QUICK = Extent((SECOND,), (WINDOW,), (), ((1, 1),), (ORIN,))


def claims(counts: Counts, extent: Extent) -> list[Claim]:
    """Returns the claims about loads, and about the pairs that can be fused on the paper's GPU."""
    found = [
        Claim(
            f"global loads that merging {number} requests saves, the least of {', '.join(extent.models)}",
            exact(min(saved(counts.sum_of(model, number)) for model in extent.models)),
            "%",
            goal,
            paper=f"{goal:g} %",
        )
        for number, goal in ((2, LEAST), (WINDOW, MOST))
        if number in extent.requests
    ]
    windows = list(counts.window_rows()) if 1 in extent.requests else []
    if windows:
        separate, merged = (
            sum(row["probability"] * row[name] for row in windows) for name in ("separate_loads", "merged_loads")
        )
        found.append(
            Claim(
                f"global loads that merging saves in a window of {WINDOW} requests of random models",
                exact(100 * (1 - merged / separate)),
                "%",
                LEAST,
                paper=f"{LEAST:g} to {MOST:g} %",
            )
        )
    found += [
        Claim(
            f"n-th layers of AlexNet and ResNet-18 that can be fused on sm_{target}, {one} + {two} requests",
            exact(counts.fusable_pairs((one, two), target)),
            "of 8",
            len(pairs_of((one, two))),
        )
        for one, two in extent.pairs
        for target in extent.targets
    ]
    return found


def run(chosen: argparse.Namespace) -> Report:
    """Counts and compiles everything, and returns the report."""
    extent = QUICK if chosen.quick else FULL
    counts = Counts(extent)
    counts.collect()
    sums = [*counts.model_rows(), *(counts.window_rows() if 1 in extent.requests else ())]
    for row in sums:
        show(row)
    rows = [*sums, *counts.pair_rows(), *counts.layer_rows()]
    return Report("merged_kernels", claims(counts, extent), rows)


def main() -> int:
    """Runs the benchmark."""
    return run_command(__doc__, run)


if __name__ == "__main__":
    sys.exit(main())
