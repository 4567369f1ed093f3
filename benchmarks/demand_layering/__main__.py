"""Demand layering (paper 002): runs models in a part of their weights' memory, and measures the time that this costs.

Each model runs one image at a time, with weights that are read past the page cache. A residency says where the weights
are. A model's residencies take turns within one process: resident weights, each pipeline, and the obvious rivals. One
rival maps the file and has page faults on cold pages. One reads the whole model at the start of each pass. The third is
accelerate's disk offload, if that is installed. A turn is a short group of passes in a row. The first pass is not
measured: a prefetcher fills its ring in the pause before, which would flatter it. With rivals that read nothing ahead,
the first pass is measured too.

- Each delay has a bound. It is the longer of two times: reading everything but the resident blocks, and computing plus
  the time that reading takes of the same cores. A disk's bandwidth changes from one second to the next. So all weights
  are read alone before and after each turn, and a bound uses the bandwidth of its own turn.
- Predicted delays are compared with measured ones for each pipeline, and for other points of the trade-off. Each turn
  times the layers again, and scales the profile's bandwidth by how the disk has changed since. A row's `disk_spread`
  says by which share the bandwidth differs between the two reads of a turn.
- On a CPU, two stages read and run: nothing is copied. So `asynchronous` has the plan of `two_stage` there, and takes
  more memory only with a budget.
- Resident weights have further turns in which a thread reads all weights in vain. They show how much time reading takes
  on this machine in any case.
- The memory of buffers is counted. Percentages are of one copy of the weights; the paper's are of two.
- Memory is also measured from outside, as the peak (VmHWM) of a process for each residency. The peak of another process
  is subtracted. It reads nothing and has all layers in one place. By chance, two such processes may differ by a huge
  page. A figure that lies further below zero is impossible and decides nothing. Models with features larger than all
  weights are left out.
- A start is measured from outside as well: a process that has a packed file loads the model and gets its first result.
  Its peak is compared with that of later passes, both without the memory of libraries.
- A row's `peak_mb` is that of the whole process in the residency's turns. It includes all other residencies' weights.

YOLOv4 is the paper's model. The run ends with the paper's table of it, and of each other model.

On a CPU, the quick run has only ResNet-50: ten turns of YOLOv3 and their preparation take longer than a minute. It
leaves out the other pipelines and rivals, further points, and memory measured from outside. `--seconds` is the time for
each model.

On a GPU, each streaming residency is compared with resident weights and an upload of all weights for each pass. Memory
is counted on the GPU. The bound is the longer of computing and of reading all weights.

`--two-cores` measures the paper's three stages in place of all that: one core reads and copies, and the other computes.
See `demand_layering/two_cores.py`.

From the source tree: `PYTHONPATH=. python benchmarks demand_layering`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.claim import Claim
from benchmarks.common.report import Panel, Report, arguments, deliver, seconds_for_turns, show
from benchmarks.demand_layering import child, two_cores
from benchmarks.demand_layering.contest import WITH_READS, Effort, StreamingContest
from benchmarks.demand_layering.on_gpu import StreamingContestOnGpu
from benchmarks.demand_layering.plan import plan_model
from benchmarks.demand_layering.table import PAPERS_MODEL, PIPELINES, paper_table
from split_infer_ros.split.load import choose_device

MODELS = (PAPERS_MODEL, "yolov3", "retinanet", "resnet50", "vgg16", "alexnet")
QUICK_MODELS = {"cpu": ("resnet50",), "cuda": (PAPERS_MODEL,)}
RIVALS = (child.MAPPED, child.WHOLE, child.OFFLOADED)
FULL = Effort((child.RESIDENT, *PIPELINES, *RIVALS, WITH_READS), trials=4, measures_peak=True)
QUICK = Effort((child.RESIDENT, child.TWO_STAGE, child.AUTO, child.MAPPED), trials=0, measures_peak=False)
FULL_S = 400.0  # for each model
SLOW_S = {"retinanet": 1500.0}  # its ten turns take that long


def run(names: Sequence[str], effort: Effort, device: torch.device, seconds: Callable[[str, int], float]) -> Report:
    """Measures models on a device, one after another.

    Args:
        names: the names of the models.
        effort: how much is measured for each model on a CPU.
        device: the device that runs the models.
        seconds: returns how many seconds the turns of a model may take. Its arguments are the model's name and the
            number of models left, this one included.
    """
    rows: list[Mapping[str, Any]] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # on a disk: /tmp may be in memory
        for index, name in enumerate(names):
            path = Path(folder) / f"{name}.weights"
            with contest_of(name, path, effort, device) as contest:
                contest.take_turns(seconds(name, len(names) - index))
                rows += contest.rows()
                claims += contest.claims()
                panels.append(Panel(f"{name}, batch 1", "ms", contest.samples_ms()))
    for row in rows:
        show({name: value for name, value in row.items() if name not in ("samples_ms", "seen_mb")})
    print(f"\n{paper_table(rows)}\n", flush=True)
    return Report("demand_layering", claims, rows, panels)


def contest_of(name: str, path: Path, effort: Effort, device: torch.device) -> StreamingContest | StreamingContestOnGpu:
    """Prepares a model's contest.

    Args:
        name: the model's name.
        path: the file to which its packed weights are written.
        effort: how much is measured on a CPU.
        device: the device that runs the model.
    """
    if device.type == "cuda":
        return StreamingContestOnGpu.open(name, path, device)
    return StreamingContest.open(plan_model(name, path), effort)


def main() -> int:
    """Runs the benchmark and returns its exit code."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="which ones; unless given, all (--quick: one)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    parser.add_argument(
        "--two-cores", action="store_true", help="three stages on two cores, at a fixed rate of reading"
    )
    chosen = parser.parse_args()
    if chosen.two_cores:
        if len(os.sched_getaffinity(0)) < two_cores.MIN_CORES:
            parser.error("--two-cores needs two cores, and this process may use one.")
        stages = chosen.models or (two_cores.QUICK_MODELS if chosen.quick else two_cores.MODELS)
        deliver(two_cores.run(stages, lambda: seconds_for_turns(chosen, two_cores.FULL_S)), chosen)
        return 0
    device = choose_device(chosen.device)
    names = chosen.models or (QUICK_MODELS[device.type] if chosen.quick else MODELS)

    def seconds(name: str, left: int) -> float:
        share = left if chosen.quick and chosen.seconds is None else 1  # of a quick run's minute
        return seconds_for_turns(chosen, SLOW_S.get(name, FULL_S)) / share

    effort = QUICK if chosen.quick else FULL
    deliver(run(names, effort, device, seconds), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
