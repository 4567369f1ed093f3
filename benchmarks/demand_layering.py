"""Demand layering: a model in a part of its weights' memory, and what that costs in time.

One image at a time, weights read past the page cache. These take turns within one process: resident weights, each
pipeline, and the obvious rivals (mmap with page faults on cold pages; the whole model read at each pass's start;
accelerate's disk offload, where that is installed). A turn is a short group of passes in a row. The first does not
count: during a pause a reader fills its ring, which would flatter it. With rivals that read nothing ahead it counts.

- Beside each delay stands its bound: the longer of reading everything but what stays, and of computing and what reading
  takes of the same cores. A disk's bandwidth changes from one second to the next, so all weights are read with nothing
  beside it before and after each turn. Bounds are for the bandwidth of their own turn.
- The predicted delay is compared with the measured one for `auto`, for the smallest ring (`two_stage`), and for other
  points of the trade-off. Each turn times the layers anew, and predicts by that and by the bandwidth of the turn.
- Resident weights have further turns, in which as much is read in vain: that is what reading takes of this machine in
  any case.
- What buffers hold is counted. Percentages are of one copy of the weights; the paper's are of two.
- Memory is looked at from outside as well: the peak (VmHWM) of a process of its own for each way, less that of one
  whose layers all lie in one place and which reads nothing. Two such processes differ by a huge page by chance. A
  figure further below zero is impossible and decides nothing. Where features take more than all weights do, nobody
  looks.
- A row's `peak_mb` is that of the whole process in the way's turns, which holds all other ways' weights as well.

On a CPU the quick run has ResNet-50 alone: with YOLOv3, ten turns and what comes before them take longer than a minute.
It leaves out the other pipelines and rivals, further points, and looks from outside. `--seconds` are those of each
model.

On a GPU: each way of reading, against resident weights and an upload of all weights for each pass. What a way holds is
the memory on the GPU. The bound is the longer of computing and of reading all weights.

From the source tree: `PYTHONPATH=. python benchmarks/demand_layering.py`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.demand_layering`
import _layering_child as child
from _layering_contest import BESIDE, Effort, Layered
from _layering_on_gpu import LayeredOnGpu
from _layering_plan import plan

from split_infer_ros.split.load import choose_device
from split_infer_ros.telemetry.claim import Claim
from split_infer_ros.telemetry.report import Panel, Report, arguments, deliver, seconds_for_turns, show
from split_infer_ros.weight_streaming.residency import ASYNCHRONOUS, RESIDENT, SYNCHRONOUS, TWO_STAGE

MODELS = ("yolov3", "retinanet", "resnet50", "vgg16", "alexnet")
QUICK_MODELS = {"cpu": ("resnet50",), "cuda": ("yolov3",)}
PIPELINES = (SYNCHRONOUS, ASYNCHRONOUS, TWO_STAGE, child.CHOSEN)
FULL = Effort((RESIDENT, *PIPELINES, child.MAPPED, child.WHOLE, child.OFFLOADED, BESIDE), 4, looks=True)
QUICK = Effort((RESIDENT, TWO_STAGE, child.CHOSEN, child.MAPPED), 0, looks=False)
FULL_S = 400.0  # for each model
SLOW_S = {"retinanet": 1500.0}  # whose ten turns take that long


def run(names: Sequence[str], effort: Effort, device: torch.device, seconds: Callable[[str, int], float]) -> Report:
    """Measure models on that device, one after the other.

    Args:
        names: of the models.
        effort: how much is measured of each on a CPU.
        device: where they run.
        seconds: for which a model's ways may take turns: by its name, and how many models are left with it.
    """
    rows: list[Mapping[str, Any]] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # on a disk: /tmp may lie in memory
        for place, name in enumerate(names):
            path = Path(folder) / f"{name}.weights"
            made = LayeredOnGpu(name, path, device) if device.type == "cuda" else Layered(plan(name, path), effort)
            with made as layered:
                layered.take_turns(seconds(name, len(names) - place))
                rows += layered.rows()
                claims += layered.claims()
                panels.append(Panel(f"{name}, batch 1", "ms", layered.samples_ms()))
    for row in rows:
        show({name: value for name, value in row.items() if name not in ("samples_ms", "seen_mb")})
    return Report("demand_layering", claims, rows, panels)


def main() -> int:
    """Run the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="which ones; unless given, all (--quick: one)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    chosen = parser.parse_args()
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
