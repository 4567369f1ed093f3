"""The rows and the picture of the benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common.energy import FIGURE, energy_row
from benchmarks.common.estimate import median
from benchmarks.common.report import Curve, Panel, Report
from benchmarks.common.rows import finite, in_ms, measured, of_estimate
from benchmarks.rivals.paper_000 import PAPERS_BATCH
from benchmarks.two_processors.cell import OPTIMISED, PREPARED, CellResult
from benchmarks.two_processors.claims import SPEED, bound_gain, claims_of, gain, part_of_bound, slow_down
from benchmarks.two_processors.timeline import busy_times

STAGES = ("backbone", "head")


def conclude(results: Sequence[CellResult], facts: Mapping[str, Any]) -> Report:
    """Returns the report: the claims, the rows and the picture.

    Args:
        results: the cells so far.
        facts: what is known about the processors and engines, as the first row.
    """
    rows = [facts, *(row for each in results for row in rows_of(each))]
    return Report("two_processors", claims=claims_of(results), rows=rows, panels=panels_of(results))


def rows_of(result: CellResult) -> list[dict[str, Any]]:
    """Returns one row for each rival, with medians over the turns."""
    rows = []
    for rival in result.rivals:
        latency = "batch_s" if result.has(rival, "batch_s") else "latency_s"  # the same for a whole model as built
        row: dict[str, Any] = {
            "what": result.name,
            "configuration": rival,
            "timed_images": result.timed_images,
            "agreement": result.agreement[rival],
            **energy_row(result.samples(rival, FIGURE)),
            **measured(images_per_s=result.samples(rival, SPEED), batch_ms=in_ms(result.samples(rival, latency))),
        }
        if rival in result.split_points:
            row |= _of_pipeline(result, rival)
        rows.append(row)
    return rows


def _of_pipeline(result: CellResult, rival: str) -> dict[str, Any]:
    """Returns the figures that only a pipeline of two stages on two processors has."""
    row: dict[str, Any] = {"split_point": result.split_points[rival]}
    for stage in STAGES:
        row[f"{stage}_busy"] = _median(result.samples(rival, f"{stage}_busy"))
        row[f"{stage}_alone_ms"] = 1e3 * _median(result.samples(rival, f"{stage}_alone_s"))
        row[f"{stage}_slow_down"] = _finite_median(slow_down(result, rival, stage))
    over = PREPARED if result.has(PREPARED, SPEED) else OPTIMISED
    if rival not in (PREPARED, OPTIMISED):
        row["part_of_bound"] = _median(part_of_bound(result, rival))
        row["part_of_bound_of_stages_alone"] = _median(part_of_bound(result, rival, "alone_s"))
        row |= of_estimate(gain(result, rival, over), f"times {over}")
        if over == PREPARED:
            row |= of_estimate(median(bound_gain(result, rival)), "bound_of_gain")
    if rival == result.split:
        row["predicted_images_per_s"] = result.predicted_images_per_s
    return row


def panels_of(results: Sequence[CellResult]) -> list[Panel | Curve]:
    """Returns the charts at one batch size: the paper's if it was measured, or else the largest.

    Each model and engine has a chart of speeds, and two of when the processors work: before the split and after it.
    """
    panels: list[Panel | Curve] = []
    alone = [each for each in results if not each.competitors]
    sizes = {each.batch_size for each in alone}
    size = PAPERS_BATCH if PAPERS_BATCH in sizes else max(sizes, default=0)
    for result in alone:
        if result.batch_size == size:
            speeds = {rival: result.samples(rival, SPEED) for rival in result.rivals}
            panels.append(Panel(f"{result.name}: images/s", "1/s", speeds))
            for when, rival in {"before": PREPARED, "after": result.split}.items():
                panels.append(busy_times(f"{when}: {rival}", result.timelines[rival]))
    for result in results:
        if result.competitors:
            speeds = {rival: result.samples(rival, SPEED) for rival in result.rivals}
            panels.append(Panel(f"{result.name}: images/s", "1/s", speeds))
    return panels


def _median(samples: Sequence[float] | np.ndarray[Any, Any]) -> float:
    return float(np.median(samples))


def _finite_median(samples: np.ndarray[Any, Any]) -> float | None:
    return finite(_median(samples))
