"""The JSON files of benchmarks: which there are, on which machine each was measured, and their numbers as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "results"
TITLES = {
    "pipeline": "The pipeline against a node written the usual way",
    "detector": "A user's own detector, against usual nodes around torch, ONNX Runtime and OpenVINO",
    "start": "From a start to the first detection, against usual nodes",
    "improve": "A search for a faster engine while frames flow",
    "split_points": "Split point auto against each fixed split point and batch size",
    "engines": "Engine auto against each engine alone",
    "precisions": "A trained detector in int8 and bf16 against itself in fp32",
    "transports": "From backbone to head: the three transports",
    "overload": "More frames than the pipeline can take",
    "two_pipelines": "Two pipelines that share the cores",
    "tenants": "Many cameras in one process, against a process for each camera",
    "unified_splitting": "Unified splitting (paper 000)",
    "two_processors": "Unified splitting on two processors of a CPU (paper 000)",
    "multi_tenant": "Kernel merge and fusion (paper 001)",
    "merged_kernels": "Merged and fused kernels (paper 001)",
    "demand_layering": "Demand layering (paper 002)",
    "memory_policies": "Memory policies (paper 003)",
    "co_optimisation": "Co-optimisation (paper 003)",
    "point_clouds": "Objects in point clouds (paper 003)",
    "tuning": "Tuning (paper 004)",
    "vision_ops": "Vision-specific operators (paper 004)",
}
REPEATED = "repeatability.json"  # of scripts/repeatability.py
BAR = r"\|"  # in a cell of a table

# A benchmark's JSON file, with its path's stem as ``stem``, and whether a picture lies beside it as ``has_picture``.
Results = Mapping[str, Any]


def read_results(folder: Path) -> list[Results]:
    """All results there, in the order of TITLES and then by name.

    Raises:
        SystemExit: a file is no benchmark's result, or of a benchmark that has no title.
    """
    found = []
    for path in sorted(set(folder.glob("*.json")) - {folder / REPEATED}):
        result = json.loads(path.read_text())
        if result.get("bench") not in TITLES or "verdict" not in str(result.get("claims")):
            raise SystemExit(f"{path} is no result of a benchmark of this version: measure it again, or remove it.")
        found.append({**result, "stem": path.stem, "has_picture": path.with_suffix(".png").exists()})
    order = list(TITLES)
    return sorted(found, key=lambda result: (order.index(result["bench"]), result["stem"]))


def machine_of(result: Results) -> str:
    """The hardware and what decides its speed, in a line."""
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    gpu = machine["gpu"] or "no GPU"
    return f"{machine['cpu']}, {machine['instruction_set']}, {machine['cores']} cores, {gpu}; {versions}"


def column_of(result: Results) -> str:
    """A machine in a word: its GPU, or its processor's instructions."""
    machine = result["machine"]
    limit = re.search(r"oneDNN up to (\S+)", machine["instruction_set"])
    return str(machine["gpu"] or (limit[1] if limit else machine["instruction_set"].split()[0]))


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """The lines of a table in Markdown."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |"


def short(value: float | None) -> str:
    """A number with three digits, or with all before the point."""
    return "" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
