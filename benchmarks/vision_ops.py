"""Vision-specific operators: each against torchvision's or torch's own, and against the naive form.

- What a detector's head gives for a batch, 16 images x 3,234 boxes x 91 classes: batched suppression of all classes
  against torchvision's loop over images and classes, with boxes spread over the picture, and with nearly all boxes on
  top of each other.
- Detectors end to end, one image, with these operators and with torchvision's loop (the paper's Table 4 in form), and
  what falling back to the CPU costs.
- Each operator from 10 to 100,000 boxes an image and 1 to 64 images: is it ever slower than the library's own? The
  rivals take turns on the same values; box_nms has 20 classes here, and its rival is batched_nms, image by image.

On the CPU, and on a CUDA GPU where there is one. Needs torch and torchvision only: from the source tree,
`PYTHONPATH=. python benchmarks/vision_ops.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `python -m benchmarks.vision_ops`
import _detector_latency
from _operator_times import (
    ARGSORT,
    FORMS,
    FULL,
    HEAD,
    HEAVY,
    LABELLED,
    LIBRARY,
    OPERATORS,
    OURS,
    QUICK,
    SUM,
    Extent,
    contests,
    measure,
    row,
)

from split_infer_ros.telemetry.report import AT_MOST, Claim, Panel, Report, arguments, deliver

Rows = Sequence[Mapping[str, Any]]
MANY = 1000  # boxes from which an operator is to be as fast as the library's, in all images
CPU, GPU = "cpu", "cuda"
QUICK_SECONDS, SECONDS = 1.0, 20.0  # of each detector


def run(extent: Extent, detector_seconds: float) -> Report:
    """Measure all operators on all devices that there are, and detectors for so long each."""
    rows, panels = [], []
    for device in [torch.device(CPU), *([torch.device(GPU, 0)] if torch.cuda.is_available() else [])]:
        for contest in contests(device, extent):
            times = measure(contest, device, extent)
            rows.append(row(contest, device, times))
            print(line(rows[-1]), flush=True)
            if contest.operator in (HEAD, HEAVY):
                samples = {name: [1e3 * value for value in found] for name, found in times.items()}
                panels.append(Panel(f"{contest.operator}, {device.type}", "ms", samples))
    detectors, claims = _detector_latency.measure(detector_seconds)
    for found in detectors:
        values = (f"{name} {value:.4g}" if isinstance(value, float) else f"{value}" for name, value in found.items())
        print(", ".join(values), flush=True)
    return Report("vision_ops", conclude(rows) + claims, [*rows, *detectors], [*panels, *table_4(detectors)])


def table_4(rows: Rows) -> list[Panel]:
    """A panel for each detector: one image, before and after."""
    found = [each for each in rows if each["what"] == "detector"]
    return [
        Panel(each["model"], "ms", {"torchvision's loop": [each["before_ms"]], "box_nms": [each["after_ms"]]})
        for each in found
    ]


def line(found: Mapping[str, Any]) -> str:
    """One contest for people."""
    medians = ", ".join(f"{name} {found[f'{name}_us']:,.0f} us" for name in FORMS if f"{name}_us" in found)
    return f"{found['operator']}, {found['device']}, {found['images']} x {found['size']:,}: {medians}"


def conclude(rows: Rows) -> list[Claim]:
    """The goals, which differ between CPU and GPU."""
    claims = [
        Claim(f"{operator}, CPU, times torchvision's loop", least_ratio(of(rows, CPU, operator)), "x", goal)
        for operator, goal in ((HEAD, 10.0), (HEAVY, 2.0))
    ]
    for operator in OPERATORS:
        found = of(rows, CPU, operator)
        many = [each for each in found if each["images"] * each["size"] >= MANY]
        name = f"{operator}, CPU, 1,000 and more, times the library's, least"
        claims.append(Claim(name, least_ratio(many), "x", 0.95))
        over = [each[f"{OURS}_us"] - each[f"{LIBRARY}_us"] for each in found if each not in many]
        name = f"{operator}, CPU, fewer, over the library's, most"
        claims.append(Claim(name, max(over, default=math.nan), "us", 25.0, AT_MOST))
    if any(each["device"] == GPU for each in rows):
        batches = [each for each in of(rows, GPU, LABELLED) if each["images"] > 1] + of(rows, GPU, HEAD)
        claims.append(Claim("box_nms of batches, GPU, times torchvision's, least", least_ratio(batches), "x", 1.5))
        for operator in (SUM, ARGSORT):
            many = [each for each in of(rows, GPU, operator) if each["images"] * each["size"] >= MANY]
            claims.append(Claim(f"{operator}, GPU, 1,000 and more, times torch's, least", least_ratio(many), "x", 1.0))
    return claims


def of(rows: Rows, device: str, operator: str) -> list[Mapping[str, Any]]:
    """The rows of an operator."""
    return [each for each in rows if (each["device"], each["operator"]) == (device, operator)]


def least_ratio(rows: Iterable[Mapping[str, Any]]) -> float:
    """How many times the library's time is ours, where that is least."""
    return min((each[f"{LIBRARY}_us"] / each[f"{OURS}_us"] for each in rows), default=math.nan)


def main() -> int:
    """Run the benchmark."""
    chosen = arguments(__doc__).parse_args()
    report = run(QUICK, QUICK_SECONDS) if chosen.quick else run(FULL, SECONDS)
    deliver(report, chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
