"""Compares this package with engine `auto` with each engine alone, model by model, in fp32.

An engine alone runs the network without this package. On processors with AVX512_BF16 or AMX_BF16, OpenVINO alone
compiles in bf16 unless fp32 is asked for. It takes part there a second time in the same turns, as it compiles. On other
processors, the row says that both are the same. Claims compare with
the engines in fp32.

For two models it also compares lower precisions with fp32, where the processor has them, unless the run is quick.

- Batch 1, for latency: the backbone's network with engine `auto`, and three rivals. These are ONNX Runtime and OpenVINO
  alone with settings for low latency, and torch with the module as built. Alone, ONNX Runtime's threads spin, as is its
  default. In this package they sleep after 100 us, because another stage may need the core. OpenVINO's threads never
  spin.
- Batch 8, for throughput: the whole pipeline at its default split point, from images of the model's size to detections.
  The engines alone only run the network. The pipeline may compute two batches side by side, like a node with the
  objective `throughput`. OpenVINO has its hint for throughput, and all its requests are kept busy.
- Precisions, batch 1: the same network by OpenVINO in bf16, in int8 and in fp32. Differences of results are in the row.

First the engines are compared for each model, as a node does it. Then all rivals take turns in changing order, each
with all cores. At batch 1, a turn is a short group of calls. Each claim is the median over turns of what two rivals did
in the same turn. The best engine alone is the one in fp32 with the best median.

`yolo_sized` is a detector of the size of YOLOv8n at 480x640, which the package takes as an ONNX file. The other
models are the catalogue's, with random weights. Needs torch, torchvision and the engines: from the source tree,
`PYTHONPATH=. python benchmarks engines`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.claim import Claim
from benchmarks.common.estimate import exact
from benchmarks.common.precision_contest import PrecisionRivals, goals_of, quantised_on_scenes
from benchmarks.common.report import Panel, Report, arguments, deliver, seconds_for_turns, show
from benchmarks.common.turns import take_turns
from benchmarks.engines.contest import BATCH_SIZE, YOLO, EnginesAlone
from split_infer_ros.runtime.process import prepare_process

MODELS = (
    *("mobilenet_v2", "squeezenet1_0", "ssdlite320", "resnet50", "ssd_resnet50", "yolov3", "resnet18"),
    *("efficientnet_b2", "vit_tiny", "shapes", "alexnet", "vgg16", "ssd300", YOLO),
)
FULL_S = 40.0  # seconds of a model's turns
MIN_AS_FAST = 5  # at least how many pipelines should reach the best engine alone


def measure(
    names: Sequence[str], *, quick: bool, seconds: Callable[[], float]
) -> tuple[list[Claim], list[dict[str, Any]]]:
    """Measures one model after another, so that not all of them are in memory. Returns the claims and the rows.

    Args:
        names: the names of the models.
        quick: whether the run is quick.
        seconds: returns how many seconds a model's turns last. It is called after the engines were compared for the
            model, so that a quick run ends within its minute.
    """
    claims: list[Claim] = []
    rows: list[dict[str, Any]] = []
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            rivals = EnginesAlone(
                name,
                Path(folder),
                group_s=0.1 if quick else 0.3,
                batches=2 if quick else 4,
                quick_export=quick,
                with_throughput=not quick,
            )
            precisions = None
            if not quick:
                precisions = PrecisionRivals(
                    name, rivals.model, goals=goals_of(name), quantise=quantised_on_scenes, group_s=0.3
                )
            take_turns([*rivals.contests, *(precisions.contests if precisions else [])], seconds())
            claims += rivals.latency_claims()
            if len(rivals.contests) > 1:
                claims += rivals.throughput_claims()
                ratios.append(rivals.throughput_ratio().value)
            rows += rivals.rows()
            if precisions is not None:
                claims += precisions.claims()
                rows += precisions.rows()
            rivals.close()
    if ratios:
        reached = sum(value >= 1.0 for value in ratios)
        name = f"models whose pipeline at batch {BATCH_SIZE} serves as many images as the best engine alone in fp32"
        claims.append(Claim(name, exact(float(reached)), "", float(min(MIN_AS_FAST, len(ratios)))))
    return claims, rows


def main() -> int:
    """Runs the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="these alone; with --quick by default yolo_sized")
    chosen = parser.parse_args()
    prepare_process()
    names = chosen.models or ((YOLO,) if chosen.quick else MODELS)
    claims, rows = measure(names, quick=chosen.quick, seconds=lambda: seconds_for_turns(chosen, FULL_S))
    for row in rows:
        show({name: value for name, value in row.items() if name != "samples"})
    panels = [Panel(row["what"], "", row["samples"]) for row in rows if row["samples"]]
    deliver(Report("engines", claims, rows, panels), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
