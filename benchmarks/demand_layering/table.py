"""Makes the table of paper 002: the memory of each pipeline, and how much slower it is than resident weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.demand_layering import child

PIPELINES = (child.SYNCHRONOUS, child.ASYNCHRONOUS, child.TWO_STAGE, child.AUTO)
PAPERS_MODEL = "yolov4"
MIB = 2**20  # bytes; the paper's MB
LINE = "{:<16}{:>10}{:>16}{:>12}{:>12}   {}"


class PaperFigures(NamedTuple):
    """What paper 002 reports of a pipeline.

    Attributes:
        memory_mib: the memory of its buffers, in MiB.
        delay_percent: by how many percent a pass takes longer than with resident weights, as text.
    """

    memory_mib: float
    delay_percent: str


PAPER = {  # a Jetson AGX Xavier; resident weights take 160.8 ms
    child.SYNCHRONOUS: PaperFigures(72.0, "+23.7 %"),
    child.ASYNCHRONOUS: PaperFigures(36.0, "+12.7 %"),
    child.TWO_STAGE: PaperFigures(18.0, "+21.5 %"),
    child.AUTO: PaperFigures(52.8, "below +0.6 %"),
}


def paper_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the table of paper 002 for each model, as text.

    As in the paper, reductions of memory are relative to two copies of the weights.

    Args:
        rows: the rows of the benchmark. Their ``memory_mb`` is that of host and GPU together.
    """
    return "\n\n".join(_table_of(name, rows) for name in dict.fromkeys(str(row["model"]) for row in rows))


def _table_of(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    by_way = {str(row["way"]): row for row in rows if row["model"] == name}
    resident = by_way[child.RESIDENT]
    copy_mib = _mib(resident["weights_mb"])
    lines = [
        f"{name}: {copy_mib:.1f} MiB of weights, {resident['delay_ms']:.1f} ms when they are resident",
        LINE.format(
            "pipeline", "MiB", "of two copies", "ms", "later", "the paper" if name == PAPERS_MODEL else ""
        ).rstrip(),
    ]
    for pipeline in PIPELINES:
        if pipeline in by_way:
            lines.append(_line(pipeline, by_way[pipeline], resident, is_papers=name == PAPERS_MODEL))
    return "\n".join(lines)


def _line(pipeline: str, row: Mapping[str, Any], resident: Mapping[str, Any], *, is_papers: bool) -> str:
    memory_mib = _mib(row["memory_mb"])
    copies_mib = 2 * _mib(resident["weights_mb"])
    later = 100 * (row["delay_ms"] / resident["delay_ms"] - 1)
    paper = PAPER[pipeline]
    return LINE.format(
        pipeline,
        f"{memory_mib:.1f}",
        f"{100 * (memory_mib / copies_mib - 1):+.1f} %",
        f"{row['delay_ms']:.1f}",
        f"{later:+.1f} %",
        f"{paper.memory_mib} MiB, {paper.delay_percent}" if is_papers else "",
    ).rstrip()


def _mib(mb: float) -> float:
    return mb * 1e6 / MIB
