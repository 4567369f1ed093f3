"""Draws the figures of benchmarks: bars with intervals, and curves."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.estimate import median

LABEL_WIDTH = 12  # the most characters in a line of a bar's label
MAX_LEVEL_LABELS = 4  # if a panel has more bars, their labels are slanted
FONT_SIZE = 7  # the caption's
CHARACTER_IN = 0.009 * FONT_SIZE  # width of a character of the caption, inches
MAX_COLUMNS = 5  # the most panels in a row


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart that compares rivals: a bar up to each median, the median's 95 % interval, and a dot for each sample.

    Attributes:
        title: the panel's title.
        unit: the unit of the samples.
        samples: the samples of each rival, by the rival's name.
    """

    title: str
    unit: str
    samples: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """A chart of values that change: a step line for each rival.

    Attributes:
        title: the panel's title.
        x_label: says what the first number of a point is.
        unit: the unit of the second number of a point.
        points: the points of each rival. Their first numbers never fall. A value lasts until the next point.
    """

    title: str
    x_label: str
    unit: str
    points: Mapping[str, Sequence[tuple[float, float]]]


def draw(path: Path, panels: Sequence[Panel | Curve], caption: str) -> None:
    """Writes a PNG file of the panels, at most ``MAX_COLUMNS`` in a row, with a caption below them."""
    # imported here because the import is slow and measuring does not need it
    from matplotlib.figure import Figure

    rows = max(1, math.ceil(len(panels) / MAX_COLUMNS))
    columns = max(1, math.ceil(len(panels) / rows))
    lines = caption.splitlines()
    width = max(4.0 * columns, CHARACTER_IN * max(map(len, lines), default=0))
    figure = Figure(figsize=(width, 4 * rows + 0.25 * len(lines)), layout="constrained")
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, index + 1)
        if isinstance(panel, Panel):
            _draw_bars(axes, panel)
        else:
            _draw_steps(axes, panel)
        axes.set_title(panel.title, fontsize=10)
        axes.set_ylabel(panel.unit)
    figure.supxlabel(caption, fontsize=FONT_SIZE, family="monospace", x=0.01, ha="left")
    figure.savefig(path, dpi=120, format="png")


def _draw_bars(axes: Any, panel: Panel) -> None:
    names = list(panel.samples)
    medians = [median(panel.samples[name]) for name in names]
    heights = [each.value for each in medians]
    errors = [[each.value - each.low for each in medians], [each.high - each.value for each in medians]]
    colours = [f"C{index}" for index in range(len(names))]
    bars = axes.bar(names, heights, yerr=errors, capsize=4, color=colours, alpha=0.7)
    axes.bar_label(bars, [_short(height) for height in heights], label_type="center")
    for index, name in enumerate(names):
        axes.plot([index] * len(panel.samples[name]), panel.samples[name], "k.", markersize=3)
    labels = [textwrap.fill(name, LABEL_WIDTH, break_long_words=False) for name in names]
    axes.set_xticks(range(len(names)), labels, fontsize=8)
    if len(names) > MAX_LEVEL_LABELS:
        axes.tick_params("x", labelrotation=30)
    if min(heights) > 0 and max(heights) > 20 * min(heights):
        axes.set_yscale("log")


def _draw_steps(axes: Any, curve: Curve) -> None:
    for name, points in curve.points.items():
        xs, ys = zip(*points, strict=True)
        axes.step(xs, ys, where="post", marker=".", label=name)
    axes.set_xlabel(curve.x_label)
    axes.legend(fontsize=8)


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
