"""Serves requests of several models on one processor: one by one, concurrently, breadth first, merged, and fused.

The load is that of paper 001 (§III): requests of AlexNet, ResNet-18 and VGG-16, a third each, that arrive as a Poisson
process. Their rates are 0.5, 1 and 3 times the measured throughput of one-by-one execution. Three requests at once are
the load of Fig. 6. A trace has 100 requests, so that ten turns have the paper's 1,000. The quick run has only the rate
of 3 times capacity. Its traces have 12 requests, SqueezeNet 1.0 replaces VGG-16, and images have 128x128 pixels.

All rivals run the same prepared models. In a turn, all of them replay the same short trace; the next turn has another
trace. A claim is the median over all turns of the ratio within a turn. In a short trace, the p99 is nearly the value of
the slowest request.

A further load has models of one architecture with different weights, such as one network fine-tuned for each camera. In
turns, their batches run as one network (a stack), as one execution with a network each, and one after another. Then the
scheduler serves traces of them: without stacks, with stacks where measurements show that they pay, and always with
stacks.

The scheduler takes part four times. It merges, or merges and fuses; each execution has all cores, or may run on a
lane of one core. Rows say how many executions were merged, were fused and were on lanes. Claims are about the scheduler
that works like the node: it may merge, fuse and use lanes, and does so where measurements show that this pays. The
claims compare that scheduler with breadth-first order, like the paper, and with sequential execution. The bound is the
throughput if all requests wait from the start and run in their models' best batch sizes.

Needs torch and torchvision only: from the source tree, `PYTHONPATH=. python benchmarks multi_tenant`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.common.report import Report, arguments, deliver, seconds_for_turns, show
from benchmarks.common.turns import take_turns
from benchmarks.multi_tenant.claims import claims_of, ours
from benchmarks.multi_tenant.costs import Bound, fusion_contest, image_ratio, measure_modes
from benchmarks.multi_tenant.decisions import decision_contest
from benchmarks.multi_tenant.load import load_models
from benchmarks.multi_tenant.replays import Replays
from benchmarks.multi_tenant.rivals import SEQUENTIAL, Concurrent, rivals
from benchmarks.multi_tenant.rows import (
    Row,
    at_once_rows,
    batch_rows,
    bound_row,
    decision_rows,
    fusion_rows,
    merging_rows,
    panels,
    served_rows,
    step_rows,
)
from benchmarks.multi_tenant.stacks import prepare_alike
from split_infer_ros.engines.engine import Engine
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.split.load import choose_device

FULL_S = 5400.0
BEST = "best"  # the value of --engine that lets each model run on its fastest engine
ENDS = ("_low", "_high")  # names of the ends of intervals, which are not shown while the benchmark runs


@dataclass(frozen=True)
class Extent:
    """Says how much is measured.

    Attributes:
        models: names of models in the catalogue.
        side: the side of an image, in pixels.
        requests: the number of requests in a trace.
        loads: the rates of requests, as multiples of sequential capacity; see ``Replays``.
        window: from how many waiting requests the scheduler chooses.
        sizes: the batch sizes to measure; powers of two.
        alike: the architectures of models that differ only in their weights.
        alike_side: the side of these models' images, in pixels.
        alike_count: the number of models of each architecture.
    """

    models: Sequence[str]
    side: int
    requests: int
    loads: Sequence[float]
    window: int
    sizes: Sequence[int]
    alike: Sequence[str]
    alike_side: int = 128
    alike_count: int = 3


ALIKE = ("mobilenet_v2", "resnet18", "squeezenet1_0")
QUICK = Extent(("alexnet", "resnet18", "squeezenet1_0"), 128, 12, (3.0,), 5, (1, 2, 4), ALIKE[:1])
FULL = Extent(("alexnet", "resnet18", "vgg16"), 224, 100, (3.0, 1.0, 0.5), 5, (1, 2, 4, 8), ALIKE)


def run(device: torch.device, extent: Extent, chosen: argparse.Namespace) -> Report:
    """Measures costs, then lets all rivals serve traces in turns."""
    on_gpu = device.type == "cuda"
    load = load_models(extent.models, extent.side, device, engines_of(chosen.engine))
    modes = measure_modes(load, extent.sizes, extent.window)
    serve = rivals(load, modes, extent.window)
    if chosen.rivals:
        serve = {name: each for name, each in serve.items() if name in {*chosen.rivals, ours(list(serve)), SEQUENTIAL}}
    for rival in serve.values():
        if isinstance(rival, Concurrent):
            rival.check(load)
    heaviest = max(extent.loads)
    merged = image_ratio(modes, extent.models, max(2, extent.window // len(extent.models)))

    def replays_at(part: float) -> Replays:
        return Replays(
            load,
            serve,
            part,
            extent.requests,
            Bound(load, modes).per_second,
            lambda replays: claims_of(replays, part == heaviest, on_gpu, merged),
        )

    replays = [replays_at(part) for part in sorted(extent.loads, reverse=True)]
    fusions, decisions = fusion_contest(load, modes.whole), decision_contest(modes.whole)
    alike = [
        prepare_alike(
            name,
            extent.alike_count,
            side=extent.alike_side,
            device=device,
            sizes=extent.sizes[:2],
            window=extent.window,
            part=heaviest,
            requests=extent.requests,
        )
        for name in extent.alike
    ]
    contests = [
        *(each.contest for each in replays),
        fusions,
        *(each for found in alike for each in found.contests),
        decisions,
    ]
    take_turns(contests, seconds_for_turns(chosen, FULL_S))
    load.close()
    for found in alike:
        found.load.close()
    chosen_engines = {name: model.execution_config.engine.value for name, model in load.models.items()}
    rows: list[Row] = [{"what": "engines"} | chosen_engines, *batch_rows(modes), *merging_rows(modes, extent.window)]
    rows += [*fusion_rows(fusions, modes.whole), *decision_rows(decisions)]
    for found in alike:
        rows += found.rows(on_gpu)
    for each in replays:
        rows += [bound_row(each), *served_rows(each, on_gpu), *step_rows(each)]
    rows += at_once_rows(replays[0])
    for row in rows:
        show(in_short(row))
    claims = [claim for contest in contests for claim in contest.conclude(contest)]
    return Report("multi_tenant", claims, rows, panels(replays[0]))


def in_short(row: Row) -> Row:
    """Returns a row in a form for people: without the ends of intervals, and with each name behind its count."""
    shown = {name: value for name, value in row.items() if not name.endswith(ENDS)}
    return {name: f"{value} {name}" if type(value) is int else value for name, value in shown.items()}


def main() -> int:
    """Runs the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="of the catalogue")
    parser.add_argument(
        "--alike", nargs="*", metavar="NAME", help="of the catalogue, each several times with other weights"
    )
    parser.add_argument("--requests", type=int, metavar="N", help="of each trace")
    parser.add_argument("--load", type=float, nargs="+", metavar="X", help="in parts of sequential capacity")
    parser.add_argument("--window", type=int, metavar="N", help="requests that the scheduler looks at")
    parser.add_argument("--rivals", nargs="+", metavar="NAME", help="besides sequential execution and the scheduler")
    engines = [*(engine.value for engine in Engine), BEST]
    parser.add_argument("--engine", default=Engine.TORCH.value, choices=engines, help="best: the fastest of each model")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    chosen = parser.parse_args()
    prepare_process()
    deliver(run(choose_device(chosen.device), extent_of(chosen), chosen), chosen)
    return 0


def engines_of(name: str) -> Sequence[Engine]:
    """Returns the engines that a model may run on: the named one, or all that are installed for ``best``."""
    return [Engine(name)] if name != BEST else [engine for engine in Engine if engine.is_installed]


def extent_of(chosen: argparse.Namespace) -> Extent:
    """Returns the extent that the arguments ask for."""
    asked = {
        "models": chosen.models,
        "alike": chosen.alike,
        "requests": chosen.requests,
        "loads": chosen.load,
        "window": chosen.window,
    }
    extent = QUICK if chosen.quick else FULL
    return replace(extent, **{name: value for name, value in asked.items() if value is not None})


if __name__ == "__main__":
    sys.exit(main())
