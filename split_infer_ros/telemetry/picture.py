"""Pictures of what benchmarks measured: bars with intervals, and curves."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from split_infer_ros.telemetry.estimate import median

LABEL_WIDTH = 12  # letters a line, below a bar
MOST_LABELS = 4  # of a panel that stand upright beside each other
FONT_SIZE = 7  # of the text below
LETTER_IN = 0.009 * FONT_SIZE  # inches a letter of that text takes
MOST_COLUMNS = 5  # of panels, before another row begins


@dataclass(frozen=True, slots=True)
class Panel:
    """One comparison: for each rival a bar up to its median, the median's 95 % interval, and a dot for each sample."""

    title: str
    unit: str
    samples: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """What comes of something in time: steps for each rival.

    Attributes:
        title: of the panel.
        across, unit: of the first and of the second of each point.
        points: for each rival, the first never falling; a value lasts until the next one.
    """

    title: str
    across: str
    unit: str
    points: Mapping[str, Sequence[tuple[float, float]]]


def draw(path: Path, panels: Sequence[Panel | Curve], below: str) -> None:
    """Write a PNG of the panels, with a text below them."""
    # only here: drawing is not needed to measure, and this import is slow
    from matplotlib.figure import Figure

    rows = max(1, math.ceil(len(panels) / MOST_COLUMNS))
    columns = max(1, math.ceil(len(panels) / rows))
    lines = below.splitlines()
    width = max(4.0 * columns, LETTER_IN * max(map(len, lines), default=0))
    figure = Figure(figsize=(width, 4 * rows + 0.25 * len(lines)), layout="constrained")
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, index + 1)
        if isinstance(panel, Panel):
            _draw_bars(axes, panel)
        else:
            _draw_steps(axes, panel)
        axes.set_title(panel.title, fontsize=10)
        axes.set_ylabel(panel.unit)
    figure.supxlabel(below, fontsize=FONT_SIZE, family="monospace", x=0.01, ha="left")
    figure.savefig(path, dpi=120, format="png")


def _draw_bars(axes: Any, panel: Panel) -> None:
    names = list(panel.samples)
    found = [median(panel.samples[name]) for name in names]
    heights = [each.value for each in found]
    ends = [[each.value - each.low for each in found], [each.high - each.value for each in found]]
    colours = [f"C{index}" for index in range(len(names))]
    bars = axes.bar(names, heights, yerr=ends, capsize=4, color=colours, alpha=0.7)
    axes.bar_label(bars, [_short(height) for height in heights], label_type="center")
    for place, name in enumerate(names):
        axes.plot([place] * len(panel.samples[name]), panel.samples[name], "k.", markersize=3)
    labels = [textwrap.fill(name, LABEL_WIDTH, break_long_words=False) for name in names]
    axes.set_xticks(range(len(names)), labels, fontsize=8)
    if len(names) > MOST_LABELS:
        axes.tick_params("x", labelrotation=30)
    if min(heights) > 0 and max(heights) > 20 * min(heights):
        axes.set_yscale("log")


def _draw_steps(axes: Any, curve: Curve) -> None:
    for name, points in curve.points.items():
        axes.step(*zip(*points, strict=True), where="post", marker=".", label=name)
    axes.set_xlabel(curve.across)
    axes.legend(fontsize=8)


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
