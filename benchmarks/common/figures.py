"""Chooses the figures of a report by which two commits are compared, and says whether more or less of each is better.

The chosen figures are absolute figures of this package: frames per second, latencies, processor time, memory. Ratios to
a rival are not chosen, because they also change when the rival changes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


class Better(str, enum.Enum):
    """Whether more or less of a figure is better."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True)
class Figure:
    """A figure of this package.

    Attributes:
        name: says who did what, and what was measured. It is unique in a report.
        value: the figure's value, in ``unit``.
        unit: the unit of the value.
        better: whether a higher or a lower value is better.
    """

    name: str
    value: float
    unit: str
    better: Better

    def as_json(self) -> dict[str, Any]:
        """Returns the figure as plain values for a report."""
        return {"name": self.name, "value": self.value, "unit": self.unit, "better": self.better.value}


@dataclass(frozen=True)
class Metric:
    """A kind of figure in a row: its title, its unit, and whether a higher or a lower value is better."""

    title: str
    unit: str
    better: Better = Better.LOWER


@dataclass(frozen=True)
class Choice:
    """Chooses which figures of a benchmark's rows are compared.

    Attributes:
        metrics: the names of the figures in a row.
        rivals: the rivals that run this package. None stands for rows without a rival.
        contests: the contests (``what`` in a row) whose rows are used. Empty: all.
    """

    metrics: Sequence[str]
    rivals: Sequence[str | None] = (None,)
    contests: Sequence[str] = ()


CPU, PEAK = "cpu_ms_a_frame", "peak_mb"
METRICS = {
    "frames_per_s": Metric("frames", "1/s", Better.HIGHER),
    "per_second": Metric("requests", "1/s", Better.HIGHER),
    "latency_p50_ms": Metric("latency p50", "ms"),
    "hop_p50_ms": Metric("hop p50", "ms"),
    "hop_ms": Metric("hop", "ms"),
    "age_p50_ms": Metric("age p50", "ms"),
    "age_p99_ms": Metric("age p99", "ms"),
    "response_mean_s": Metric("mean response", "s"),
    CPU: Metric("processor time a frame", "ms"),
    PEAK: Metric("peak memory", "MB"),
}
_SCHEDULED = tuple(name + lanes for name in ("merge and fuse", "merge, fuse and stack") for lanes in ("", ", lanes"))
CHOICES = {
    "pipeline": Choice(
        ("frames_per_s", "latency_p50_ms", "hop_p50_ms", CPU, PEAK), rivals=("pipeline", "pipeline_with_camera")
    ),
    "detector": Choice(("frames_per_s", "age_p50_ms", "latency_p50_ms", CPU, PEAK), rivals=("pipeline",)),
    "transports": Choice(
        ("hop_ms", "frames_per_s", PEAK), rivals=("intra_process", "shared_memory", "network", "shipped profile")
    ),
    "overload": Choice(("frames_per_s", "age_p50_ms", "age_p99_ms", CPU, PEAK), contests=("moderate", "flooded")),
    "tenants": Choice(("frames_per_s", "age_p50_ms", "age_p99_ms", CPU, PEAK), rivals=("tenants",)),
    "multi_tenant": Choice(  # all rivals share a process, so its memory says nothing about a single one
        ("per_second", "response_mean_s"),
        rivals=_SCHEDULED,
        contests=("poisson", "poisson, one architecture", "three requests"),
    ),
}


def figures_of(bench: str, rows: Sequence[Row], cores: int) -> list[Figure]:
    """Returns the figures in a benchmark's rows, each once. Values that are not positive numbers are left out.

    Args:
        bench: the benchmark's name. A benchmark that is not in ``CHOICES`` has no figures.
        rows: the rows of its report.
        cores: the number of the machine's cores, for the processor time per frame.
    """
    choice = CHOICES.get(bench)
    found: dict[str, Figure] = {}
    for row in rows if choice is not None else ():
        for figure in _of_row(choice, row, cores):
            found.setdefault(figure.name, figure)  # several rows hold the same memory, that of the whole run
    return list(found.values())


def read_figures(content: Mapping[str, Any]) -> list[Figure]:
    """Returns the figures of a report that was read from JSON. An older report has no list of figures, but rows.

    Raises:
        ValueError: the content is not a report.
    """
    try:
        if "figures" not in content:
            return figures_of(content["bench"], content["rows"], content["machine"]["cores"])
        return [
            Figure(each["name"], float(each["value"]), each["unit"], Better(each["better"]))
            for each in content["figures"]
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no report of a benchmark ({error!r})") from error


def _of_row(choice: Choice, row: Row, cores: int) -> Iterator[Figure]:
    rival, contest = row.get("rival"), row.get("what")
    if rival not in choice.rivals or (choice.contests and contest not in choice.contests):
        return
    values = {**row, CPU: _cpu_ms_a_frame(row, cores)}
    for name in choice.metrics:
        value, metric = values.get(name), METRICS[name]
        if isinstance(value, (int, float)) and math.isfinite(value) and value > 0:
            about = [rival] if name == PEAK else [rival, contest, *_conditions(row)]
            subject = ", ".join(str(part) for part in about if part is not None)
            title = f"{subject}: {metric.title}" if subject else metric.title
            yield Figure(title, float(value), metric.unit, metric.better)


def _conditions(row: Row) -> Iterator[str]:
    """Yields the conditions by which rows of the same rival and contest differ."""
    if "bytes" in row:
        yield f"{row['bytes']:,} bytes"
    if "load" in row:
        yield f"{row['load']:g} times capacity"
    if "models" in row:
        yield str(row["models"])


def _cpu_ms_a_frame(row: Row, cores: int) -> float | None:
    frames, busy = row.get("frames_per_s"), row.get("cpu_busy")
    return 1e3 * busy * cores / frames if frames and busy else None
