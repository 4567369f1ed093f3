"""Reports a benchmark's claims and rows: as JSON, as a table for people, and as a picture."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.claim import Claim
from benchmarks.common.figures import figures_of
from benchmarks.common.picture import Curve, Panel, draw
from benchmarks.common.usage import seconds_since_start
from split_infer_ros.telemetry.machine import describe_machine

QUICK_S = 55.0  # a quick run's minute, its start included, without 5 s for conclusions and for ending processes


@dataclass(frozen=True)
class Report:
    """The results of one run of a benchmark.

    Attributes:
        bench: the benchmark's name.
        claims: the claims, in the order in which they are shown.
        rows: all measurements, as plain values.
        panels: the panels of the picture.
        machine: describes the machine that ran the benchmark.
    """

    bench: str
    claims: Sequence[Claim]
    rows: Sequence[Mapping[str, Any]]
    panels: Sequence[Panel | Curve] = ()
    machine: Mapping[str, Any] = field(default_factory=describe_machine)

    def as_json(self) -> dict[str, Any]:
        """Returns the report as plain values."""
        return {
            "bench": self.bench,
            "machine": dict(self.machine),
            "claims": [claim.as_json() for claim in self.claims],
            "rows": [dict(row) for row in self.rows],
            "figures": [figure.as_json() for figure in figures_of(self.bench, self.rows, self.machine["cores"])],
        }

    def table(self) -> str:
        """Returns the claims as a table for people. Verdicts other than "holds" are in capitals."""
        width = max((len(claim.name) for claim in self.claims), default=0)
        machine = self.machine
        processor = f"{machine['cpu']}, {machine['instruction_set']}, {machine['cores']} cores"
        lines = [f"{self.bench} on {processor}, {machine['gpu'] or 'no GPU'}"]
        lines += [claim.line(width) for claim in self.claims]
        return "\n".join(lines)


def show(row: Mapping[str, Any]) -> None:
    """Prints one row of a report for people, and flushes the output."""
    values = (f"{name} {value:.4g}" if isinstance(value, float) else f"{value}" for name, value in row.items())
    print(", ".join(values), flush=True)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser for the arguments that every benchmark takes."""
    parser = argparse.ArgumentParser(
        prog=Path(sys.argv[0]).name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a minute on 2 cores instead of many")
    parser.add_argument("--seconds", type=float, metavar="S", help="for how long rivals take turns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write a picture (PNG) of it")
    return parser


def seconds_for_turns(chosen: argparse.Namespace, full_s: float) -> float:
    """Returns for how many seconds rivals take turns from now on.

    The result is the value of --seconds. Without that option, it is the rest of a minute for a quick run, else
    ``full_s``.

    Args:
        chosen: the arguments that the parser of ``arguments`` has read.
        full_s: seconds of turns in a run that is not quick.
    """
    if chosen.seconds is not None:
        return float(chosen.seconds)
    return max(0.0, QUICK_S - seconds_since_start()) if chosen.quick else full_s


def run_command(description: str | None, run: Callable[[argparse.Namespace], Report]) -> int:
    """Runs the command of a benchmark that has no arguments of its own. Returns the exit code.

    Args:
        description: the text of --help.
        run: takes the arguments that the parser of ``arguments`` has read; measures and returns the report.
    """
    chosen = arguments(description).parse_args()
    deliver(run(chosen), chosen)
    return 0


def deliver(report: Report, chosen: argparse.Namespace, given: Sequence[str] | None = None) -> None:
    """Prints the claims, and writes the files that the user asked for.

    Args:
        report: the results.
        chosen: the arguments that the parser of ``arguments`` has read.
        given: the command-line arguments, which the JSON file repeats. None means those of this process.
    """
    print(report.table(), flush=True)
    if chosen.json:
        content = {**report.as_json(), "arguments": _without_files(sys.argv[1:] if given is None else given)}
        chosen.json.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    if chosen.picture:
        draw(chosen.picture, report.panels, report.table())


def _without_files(given: Sequence[str]) -> list[str]:
    """Returns the arguments without those that name files to write."""
    files = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    files.add_argument("--json")
    files.add_argument("--picture")
    return files.parse_known_args(list(given))[1]
