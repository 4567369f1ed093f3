"""Compares split inference with the whole model where two processors of a CPU play accelerator and CPU (paper 000, §6).

The first two processors that the process may use are taken. The first plays the accelerator: it runs backbones. The
second plays the CPU: it runs heads, and feeds images. Each has one thread for the model. All rivals get the same
images, already resized, in turns of changing order:

- `whole, as built`: the model as built, one batch after another, in torch. The accelerator only runs the model. The CPU
  gathers, normalises and decodes. One of them is always idle. The paper's gains are over such a baseline.
- `whole, prepared`: the package's pipeline with the whole model as its backbone. Each batch waits for the results of
  the batch before. So nothing overlaps.
- `whole, optimised`: the same pipeline without that wait. The CPU decodes while the accelerator computes.
- `split, planner's split point`: the pipeline at the split point that the planner takes for the most images a second,
  from a profile of the same run.
- `split, paper's split point`: the pipeline, split between the features and the classifier (§4.4). If both split points
  are the same, they share a row.
- `whole, both cores`: the whole model with two threads on both processors.
- `whole, two lanes`: two pipelines with the whole model, each on a processor of its own.

The last two use both processors, as splitting does. A split that is faster than a whole model beside an idle processor
may still be slower than these.

The bound of a split is the time of its slower stage while both stages run. `part_of_bound` is that time divided by the
time between two batches. It is 1 if the slower stage never waits, even if other work slows that stage down. So
`part_of_bound_of_stages_alone` takes the times of stages alone instead. `bound_of_gain` is the time of a batch in
`whole, prepared` divided by that of the slower stage. `backbone_slow_down` and `head_slow_down` are the time of a stage
while both run, divided by its time alone. In the package's pipeline, pre-processing belongs to the backbone's stage. So
it runs on the accelerator.

Two equal processors are unlike the paper's board. So at one batch size, processes compete with the head for its
processor, and leave it a quarter or an eighth. The profile is measured under the same load. Only `whole, optimised` and
the planner's split point take part.

The weights are seeded, and the outputs depend on the images. Agreement is the share of results whose best class is that
of `whole, optimised`. The clock of a turn starts with its first result and stops while further batches are in flight.
The report is written again after each batch size, so a long run can be ended early.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.common.report import arguments, deliver, show
from benchmarks.common.turns import Contest, take_turns
from benchmarks.rivals.paper_000 import PAPERS_BATCH
from benchmarks.two_processors.cell import Cell, CellResult
from benchmarks.two_processors.processors import Processors
from benchmarks.two_processors.slow_head import NUM_COMPETITORS, as_head, competitors
from benchmarks.two_processors.subject import Subject
from benchmarks.two_processors.tables import conclude, rows_of
from split_infer_ros.engines.engine import Engine
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.server.profiling.profiler import Effort

MODELS = ("mobilenet_v2", "efficientnet_b2", "vit_tiny", "resnet18")
SIZES, QUICK_SIZES = (16, 32, 64, 128), (16,)
BEST = "best"  # stands for the faster one of OpenVINO and ONNX Runtime
ENGINES = (Engine.TORCH.value, BEST, Engine.OPENVINO.value, Engine.ONNXRUNTIME.value)
TURNS, QUICK_TURNS = 10, 3  # a verdict needs ten turns
MIN_IMAGES = 256  # that each rival is timed with, over five turns
MIN_BATCHES = 2  # the fewest batches timed in a turn, so that stages overlap
QUICK_EFFORT = Effort(rounds=1, warm_up=1, batches=2, seconds=0.0, runs=2, repeats=1, max_s=0.0)


def num_batches(size: int, quick: bool) -> int:
    """Returns how many batches of ``size`` images are timed in a turn."""
    return MIN_BATCHES if quick else max(MIN_BATCHES, math.ceil(MIN_IMAGES / 5 / size))


class Run:
    """One run of the benchmark: measures the models, and writes the report after each batch size.

    Args:
        chosen: the arguments.
        processors: the two processors.
    """

    def __init__(self, chosen: argparse.Namespace, processors: Processors) -> None:
        self._chosen = chosen
        self._processors = processors
        self._sizes = sorted(chosen.batch or (QUICK_SIZES if chosen.quick else SIZES))
        self._slow_size = PAPERS_BATCH if PAPERS_BATCH in self._sizes else max(self._sizes)
        self._loads = () if chosen.no_slow_heads else NUM_COMPETITORS[: 1 if chosen.quick else None]
        self._models = chosen.models or (MODELS[:1] if chosen.quick else MODELS)
        self._engines = chosen.engines or ENGINES[: 1 if chosen.quick else 2]
        self._facts: dict[str, Any] = {
            "what": "processors",
            "accelerator": processors.accelerator,
            "cpu": processors.host,
            "siblings_of_one_core": processors.are_siblings,
        }
        self._results: list[CellResult] = []

    def measure(self) -> None:
        """Measures all models, engines and batch sizes, in this order."""
        for name in self._models:
            subject = Subject(name, self._processors, QUICK_EFFORT if self._chosen.quick else Effort())
            for engine in self._chosen_engines(subject):
                for size in self._sizes:
                    self._take(subject, engine, size)
                for count in self._loads:
                    with competitors(count, self._processors.stages.head):
                        as_head(partial(self._take, subject, engine, self._slow_size, count))

    def _chosen_engines(self, subject: Subject) -> Iterator[Engine]:
        """Yields the engines by which a model runs, each once. Notes which one is the best, and by which speeds."""
        found: list[Engine] = []
        for name in self._engines:
            if name == BEST:
                engine, speeds = subject.fastest_engine()
                compared = ", ".join(f"{each.value} {speed:.3g} images/s" for each, speed in speeds.items())
                self._facts[f"{subject.name}, best engine"] = f"{engine.value} ({compared})"
                print(f"{subject.name}: the best engine but torch is {engine.value} ({compared})", flush=True)
            else:
                engine = Engine(name)
            if engine not in found:
                found.append(engine)
                yield engine

    def _take(self, subject: Subject, engine: Engine, size: int, count: int = 0) -> None:
        """Lets the rivals of one cell take turns, and writes the report."""
        print(f"{subject.name}, {engine.value}, batch {size}, {count} competitors: profile", flush=True)
        batches = num_batches(size, self._chosen.quick)
        cell = Cell(subject, engine, size, num_batches=batches, competitors=count)
        try:
            self._take_turns(cell.contest)
            result = cell.result()
        finally:
            cell.close()
        self._results.append(result)
        for row in rows_of(result):
            show(row)
        deliver(conclude(self._results, self._facts), self._chosen)

    def _take_turns(self, contest: Contest) -> None:
        if self._chosen.seconds is not None:
            take_turns([contest], self._chosen.seconds / self._num_cells)
            return
        for _ in range(self._chosen.turns or (QUICK_TURNS if self._chosen.quick else TURNS)):
            contest.take()

    @property
    def _num_cells(self) -> int:
        return len(self._models) * len(self._engines) * (len(self._sizes) + len(self._loads))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the arguments."""
    found = arguments(__doc__)
    found.add_argument("--models", nargs="+", metavar="NAME", help="default: the paper's and ResNet-18")
    found.add_argument("--batch", nargs="+", type=int, metavar="N", help="batch sizes; default: 16, 32, 64 and 128")
    found.add_argument(
        "--engines",
        nargs="+",
        choices=ENGINES,
        help="default: torch, and the faster one of OpenVINO and ONNX Runtime (best)",
    )
    found.add_argument("--turns", type=int, metavar="N", help=f"turns at each batch size; default: {TURNS}")
    found.add_argument("--no-slow-heads", action="store_true", help="leave out heads with a part of their processor")
    return found


def main() -> int:
    """Runs the benchmark."""
    chosen = parser().parse_args()
    processors = Processors.choose(os.sched_getaffinity(0))
    prepare_process()
    print(processors, flush=True)
    Run(chosen, processors).measure()
    return 0


if __name__ == "__main__":
    sys.exit(main())
