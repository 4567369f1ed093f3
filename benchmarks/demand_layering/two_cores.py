"""The three stages of demand layering on two cores of a CPU, at a fixed rate of reading (paper 002).

One core computes a model, as the paper's GPU does. Its layers stay whole, and their weights lie in memory of their own.
The other core reads weights from a file and copies them there, as the paper's CPU and copy engine do. Reads are held
back to a fixed rate: all weights take as long as the layers, or reads have a part of the disk's own rate. So a disk
whose rate changes decides nothing.

- synchronous: reading, copying and computing advance together. Two buffers on either side hold the largest layer.
- asynchronous: each stage goes on when it can. A ring on either side holds the largest layer.
- two_stage: layers use the memory to which the disk writes, and nothing is copied. One ring holds the largest layer.
- optimised: two stages with as much memory as a pass needs to take at most 1 ms longer than with resident weights, as
  predicted. The curve has further points with less memory.

All pipelines take turns with resident weights. A prediction takes the times of layers, reads and copies that were
measured at the start. In each turn, the layers' times are scaled by how long resident weights take then.

`bench demand_layering --two-cores` runs it. A quick run has only ResNet-50.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.claim import Claim
from benchmarks.common.picture import Curve
from benchmarks.common.report import Panel, Report, show
from benchmarks.common.rows import in_ms
from benchmarks.common.turns import take_turns
from benchmarks.demand_layering.child import RESIDENT
from benchmarks.demand_layering.stage_contest import OPTIMISED, PLACES, StageContest
from split_infer_ros.runtime.cores import Cores
from split_infer_ros.runtime.inference import inference_mode

MODELS = ("yolov4", "resnet50", "alexnet", "vgg16")
QUICK_MODELS = ("resnet50",)
FULL_S = 180.0  # for each model
MIN_CORES = 2


def run(names: Sequence[str], seconds: Callable[[], float]) -> Report:
    """Measures models, one after another.

    Args:
        names: the names of the models.
        seconds: returns how many seconds the turns of a model may take.
    """
    compute, read = (Cores(frozenset({number})) for number in sorted(os.sched_getaffinity(0))[:2])
    torch.set_num_threads(1)
    rows: list[Mapping[str, Any]] = []
    claims: list[Claim] = []
    panels: list[Panel | Curve] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, inference_mode():  # on a disk: /tmp may be in memory
        for name in names:
            with closing(StageContest(name, Path(folder) / f"{name}.weights", compute.bound, read.bound)) as stages:
                take_turns([stages.contest], seconds())
                rows += stages.rows()
                claims += stages.claims(stages.contest)
                delays = {rival: in_ms(stages.contest.figures[rival]) for rival in (RESIDENT, *PLACES, OPTIMISED)}
                panels += [
                    Panel(f"{name}, batch 1", "ms", delays),
                    Curve(f"{name}, two stages", "MiB", "ms", {"delay": stages.curve()}),
                ]
    for row in rows:
        show(row)
    return Report("demand_layering", claims, rows, panels)
