"""Draws when both processors work, as steps: before the split, and after it."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.common.picture import Curve
from benchmarks.rivals.pipelines import Spans, merged, stage_spans
from split_infer_ros.server.timeline import Timeline

LINES = {"accelerator": ("backbone", 1.5), "CPU": ("head", 0.0)}  # each line's stage, and where its steps begin


def busy_times(title: str, timelines: Sequence[Timeline]) -> Curve:
    """Returns a chart of the batches of a turn. A line is high while its processor works, and low while it is idle.

    Args:
        title: the chart's title.
        timelines: the times of the batches of a turn.
    """
    start = min(each.closed for each in timelines)
    spans = stage_spans(timelines)
    points = {name: steps(merged(spans[stage]), start, level) for name, (stage, level) in LINES.items()}
    return Curve(title, "ms", "high: busy, low: idle", points)


def steps(spans: Spans, start: float, level: float) -> list[tuple[float, float]]:
    """Returns the points of a step line, in ms after ``start``. Within the spans, it is one higher than ``level``."""
    points = [(0.0, level)]
    for since, until in spans:
        points += [(1e3 * (since - start), level + 1), (1e3 * (until - start), level)]
    return points
