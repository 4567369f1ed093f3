"""The one form of all benchmarks: claims and rows as JSON, as a table for people, and as a picture."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from split_infer_ros.telemetry.machine import describe_machine

AT_LEAST, AT_MOST = ">=", "<="
LABEL_WIDTH = 12  # letters a line, below a bar
MOST_LABELS = 4  # of a panel that stand upright beside each other
MOST_COLUMNS = 5  # of panels, before another row begins


@dataclass(frozen=True, slots=True)
class Claim:
    """What a benchmark set out to show, and what it found.

    Attributes:
        name: what was compared.
        value: what was found; NaN if nothing could be measured, which shows nothing.
        unit: of the value and of the goal.
        goal: what the value is compared with.
        direction: AT_LEAST or AT_MOST.
    """

    name: str
    value: float
    unit: str
    goal: float
    direction: str = AT_LEAST

    @property
    def holds(self) -> bool:
        """True if the value reaches the goal."""
        return self.value <= self.goal if self.direction == AT_MOST else self.value >= self.goal

    def as_json(self) -> dict[str, Any]:
        """The claim in a report."""
        return {
            "name": self.name,
            "value": None if math.isnan(self.value) else self.value,
            "unit": self.unit,
            "goal": f"{self.direction} {self.goal:g}",
            "holds": self.holds,
        }


@dataclass(frozen=True, slots=True)
class Panel:
    """One comparison in a report's picture: a bar for each rival's median, a dot for each sample."""

    title: str
    unit: str
    samples: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """What comes of something in time, in a report's picture: steps for each rival.

    Attributes:
        title: of the panel.
        across, unit: of the first and of the second of each point.
        points: for each rival, the first never falling; a value lasts until the next one.
    """

    title: str
    across: str
    unit: str
    points: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Report:
    """What one run of a benchmark found.

    Attributes:
        bench: its name.
        claims: in the order in which they are shown.
        rows: every single measurement, as plain values.
        panels: what the picture shows.
        machine: what it ran on.
    """

    bench: str
    claims: Sequence[Claim]
    rows: Sequence[Mapping[str, Any]]
    panels: Sequence[Panel | Curve] = ()
    machine: Mapping[str, Any] = field(default_factory=describe_machine)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "bench": self.bench,
            "machine": dict(self.machine),
            "claims": [claim.as_json() for claim in self.claims],
            "rows": [dict(row) for row in self.rows],
        }

    def table(self) -> str:
        """The claims for people; one that does not hold says so."""
        width = max((len(claim.name) for claim in self.claims), default=0)
        machine = self.machine
        processor = f"{machine['cpu']}, {machine['instruction_set']}, {machine['cores']} cores"
        lines = [f"{self.bench} on {processor}, {machine['gpu'] or 'no GPU'}"]
        for claim in self.claims:
            verdict = "holds" if claim.holds else "DOES NOT HOLD"
            goal = f"{claim.direction} {claim.goal:g}"
            lines.append(f"  {claim.name:<{width}}  {claim.value:>9.3g} {claim.unit:<4} (goal {goal:>6})  {verdict}")
        return "\n".join(lines)

    def draw(self, path: Path) -> None:
        """Write a PNG of the panels, with the claims below."""
        # only here: drawing is not needed to measure, and this import is slow
        from matplotlib.figure import Figure

        rows = max(1, math.ceil(len(self.panels) / MOST_COLUMNS))
        columns = max(1, math.ceil(len(self.panels) / rows))
        figure = Figure(figsize=(4 * columns, 4 * rows + 0.25 * len(self.claims)), layout="constrained")
        for index, panel in enumerate(self.panels):
            axes = figure.add_subplot(rows, columns, index + 1)
            if isinstance(panel, Panel):
                _draw_bars(axes, panel)
            else:
                _draw_steps(axes, panel)
            axes.set_title(panel.title, fontsize=10)
            axes.set_ylabel(panel.unit)
        figure.supxlabel(self.table(), fontsize=7, family="monospace", x=0.01, ha="left")
        figure.savefig(path, dpi=120, format="png")


def _draw_bars(axes: Any, panel: Panel) -> None:
    names = list(panel.samples)
    medians = [statistics.median(panel.samples[name]) for name in names]
    bars = axes.bar(names, medians, color=[f"C{i}" for i in range(len(names))], alpha=0.7)
    axes.bar_label(bars, [_short(median) for median in medians], label_type="center")
    for place, name in enumerate(names):
        axes.plot([place] * len(panel.samples[name]), panel.samples[name], "k.", markersize=3)
    labels = [textwrap.fill(name, LABEL_WIDTH, break_long_words=False) for name in names]
    axes.set_xticks(range(len(names)), labels, fontsize=8)
    if len(names) > MOST_LABELS:
        axes.tick_params("x", labelrotation=30)
    if min(medians) > 0 and max(medians) > 20 * min(medians):
        axes.set_yscale("log")


def _draw_steps(axes: Any, curve: Curve) -> None:
    for name, points in curve.points.items():
        axes.step(*zip(*points, strict=True), where="post", marker=".", label=name)
    axes.set_xlabel(curve.across)
    axes.legend(fontsize=8)


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def show(row: Mapping[str, Any]) -> None:
    """Print one row of a report for people, at once."""
    values = (f"{name} {value:.4g}" if isinstance(value, float) else f"{value}" for name, value in row.items())
    print(", ".join(values), flush=True)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every benchmark takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about a minute on 2 cores instead of several")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write a picture (PNG) of it")
    return parser


def deliver(report: Report, chosen: argparse.Namespace) -> None:
    """Print the claims, and write the files that were asked for."""
    print(report.table(), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n")
    if chosen.picture:
        report.draw(chosen.picture)
