"""Makes the table of the pieces' outcomes on a GPU: Markdown, from the pieces' JSON files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_steps import FAILED

SUMMARY = "summary.md"


def write_summary(out: Path) -> Path:
    """Writes ``out``/summary.md from the JSON of all pieces in ``out``, also of earlier calls."""
    pieces = [json.loads(path.read_text()) for path in sorted(out.glob("piece_*.json"))]
    path = out / SUMMARY
    path.write_text("\n".join(_lines(pieces)) + "\n")
    return path


def _lines(pieces: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "# On a GPU"
    yield ""
    for machine in dict.fromkeys(_hardware(piece["machine"]) for piece in pieces):
        yield f"- {machine}"
    yield ""
    yield "| piece | step | outcome | seconds | tests | goals | |"
    yield "|---|---|---|---|---|---|---|"
    for piece in pieces:
        for step in piece["steps"]:
            cells = [step["name"], step["outcome"], f"{step['seconds']:.0f}", _tests(step), _goals(step), step["why"]]
            yield f"| {piece['number']} | {' | '.join(_in_a_cell(cell) for cell in cells)} |"
    yield from _details(pieces)


def _hardware(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['gpu']}, driver {machine['driver'] or 'unknown'}; torch {machine['torch']}, "
        f"CUDA {machine['cuda']}, triton {machine['triton']}, Python {machine['python']}; "
        f"{machine['cpu']}, {machine['cores']} cores"
    )


def _tests(step: Mapping[str, Any]) -> str:
    counts = Counter(outcome for outcome, _ in step.get("tests", {}).values())
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


def _goals(step: Mapping[str, Any]) -> str:
    claims = step.get("claims", [])
    held = sum(claim["verdict"] == "holds" for claim in claims)
    return f"{held} of {len(claims)} hold" if claims else ""


def _details(pieces: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    steps = [step for piece in pieces for step in piece["steps"]]
    failed = [(name, why) for step in steps for name, (how, why) in step.get("tests", {}).items() if how == FAILED]
    if failed:
        yield from ["", "## Tests that failed", "", "| test | reason |", "|---|---|"]
        yield from (f"| `{_in_a_cell(name)}` | {_in_a_cell(why)} |" for name, why in failed)
    claims = [(step["name"], claim) for step in steps for claim in step.get("claims", [])]
    if claims:
        yield from ["", "## What the benchmarks found", ""]
        yield from ["| step | claim | value | 95 % interval | goal | verdict |", "|---|---|---|---|---|---|"]
        for name, claim in claims:
            value = "" if claim["value"] is None else f"{claim['value']:.3g} {claim['unit']}"
            counted = not claim["turns"] or claim["low"] is None
            interval = "counted" if counted else f"{claim['low']:.3g} to {claim['high']:.3g}"
            cells = [name, claim["name"], value, interval, claim["goal"], claim["verdict"]]
            yield f"| {' | '.join(_in_a_cell(cell) for cell in cells)} |"


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
