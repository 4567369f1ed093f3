"""What the package's processes report: their engines and counts, and whether they still look for better engines."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from benchmarks.ros.observer import Observer
from benchmarks.tenants.cell import PIPELINES, TENANTS, Cell
from split_infer_ros.msg import PipelineReport
from split_infer_ros.server.improving.improver import GOES_ON

REPORT_S = 1.2  # two reports come in this time


class Reports:
    """Keeps the latest reports of the tenants and of the pipelines.

    Args:
        observer: receives the reports.
        cell: the cell.
    """

    def __init__(self, observer: Observer, cell: Cell) -> None:
        self._latest: dict[tuple[str, str], PipelineReport] = {}
        observer.subscribe(PipelineReport, f"/{TENANTS}/report", lambda each: self._keep(TENANTS, each.tenant, each))
        for camera in cell.cameras:
            keep = partial(self._keep, PIPELINES, camera)
            observer.subscribe(PipelineReport, f"/{PIPELINES}/{camera}/report", keep)

    def goes_on(self, rival: str) -> bool:
        """Returns whether a process of a rival still looks for a faster engine or precision."""
        return any(report.improvement.endswith(GOES_ON) for report in self._of(rival))

    def rows(self, what: str) -> list[dict[str, Any]]:
        """Waits for the next reports. Returns a row for the tenants and one for the pipelines, with sums of counts.

        Args:
            what: the cell's name.
        """
        time.sleep(REPORT_S)
        return [{"what": f"{what}, reports", "rival": rival, **_row(self._of(rival))} for rival in (TENANTS, PIPELINES)]

    def _of(self, rival: str) -> list[PipelineReport]:
        return [report for (name, _), report in sorted(self._latest.items()) if name == rival]

    def _keep(self, rival: str, camera: str, report: PipelineReport) -> None:
        self._latest[rival, camera] = report


def _row(reports: Iterable[PipelineReport]) -> dict[str, Any]:
    """Returns what several reports say together."""
    reports = list(reports)
    dropped: dict[str, int] = {}
    for entry in (entry for report in reports for entry in report.dropped):
        dropped[entry.reason] = dropped.get(entry.reason, 0) + entry.count
    return {
        "engines": [f"{report.engine} {report.precision}" for report in reports],
        "faults": sorted({report.fault for report in reports} - {""}),
        **{name: sum(getattr(each, name) for each in reports) for name in ("received", "published", "in_flight")},
        "dropped": {reason: count for reason, count in dropped.items() if count},
        "batches": sum(report.batches for report in reports),
        "merged_batches": sum(report.merged_batches for report in reports),
        "fused_batches": sum(report.fused_batches for report in reports),
    }
