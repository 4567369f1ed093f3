"""The claims, the rows and the picture of the benchmark ``tenants``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, over_turns, p99, ratio, together
from benchmarks.common.picture import Panel
from benchmarks.common.report import Report
from benchmarks.common.rows import in_ms, measured, of_estimate
from benchmarks.common.turns import Contest
from benchmarks.tenants.cell import PIPELINES, RIVALS, TENANTS, USUAL
from benchmarks.tenants.turns import AGE, HZ, LOADS, MEMORY, MODERATE, TOO_FAST, TenantsBench

WHOSE = {USUAL: "usual nodes", PIPELINES: "pipelines"}
MIN_FRAMES = {USUAL: 1.2, PIPELINES: 0.97}  # times the rival's
MAX_AGE = {USUAL: 1.0, PIPELINES: 0.9}
MAX_MEMORY = 0.6  # times that of the pipelines


@dataclass(frozen=True)
class CellResult:
    """What was measured in one cell.

    Attributes:
        name: the cell's name.
        contests: the contest of each load. Their figures are called ``RIVAL FIGURE``.
        ages: the ages of each rival's results in seconds, turn by turn and camera by camera, by load.
        usage: processor time and peak memory of each rival, as parts of a row, by load.
        facts: what is known about the cell and the tenants, as rows.
    """

    name: str
    contests: Mapping[str, Contest]
    ages: Mapping[str, Mapping[str, Sequence[Sequence[Sequence[float]]]]]
    usage: Mapping[str, Mapping[str, Mapping[str, float]]]
    facts: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(
        cls, name: str, contests: Sequence[Contest], bench: TenantsBench, facts: Sequence[Mapping[str, Any]]
    ) -> CellResult:
        """Returns the results of a bench, whose ``contests`` are those of ``LOADS``."""
        usage = {load: {rival: bench.usage[load].row(rival) for rival in bench.rivals} for load in LOADS}
        return cls(name, dict(zip(LOADS, contests, strict=True)), bench.ages, usage, facts)

    def samples(self, load: str, rival: str, figure: str) -> list[float]:
        """Returns a figure of a rival in each turn."""
        return self.contests[load].figures[f"{rival} {figure}"]


def claims_under(load: str, contest: Contest, cell: str) -> list[Claim]:
    """Returns the claims of one contest.

    Args:
        load: the contest's load.
        contest: the contest.
        cell: the name of the cell.
    """
    turn_s, at_most = contest.turn_s, Direction.AT_MOST

    def times(rival: str, figure: str) -> Estimate:
        return ratio(contest.figures[f"{TENANTS} {figure}"], contest.figures[f"{rival} {figure}"])

    claims = []
    for rival, whose in WHOSE.items():
        if load == TOO_FAST:
            name = f"{cell}: frames/s, times those of {whose}"
            claims.append(Claim(name, times(rival, HZ), "x", MIN_FRAMES[rival], turn_s=turn_s))
        name = f"{cell}: age p50, {load}, part of that of {whose}"
        claims.append(Claim(name, times(rival, AGE), "x", MAX_AGE[rival], at_most, turn_s=turn_s))
    if load == TOO_FAST:
        name = f"{cell}: memory, part of that of {WHOSE[PIPELINES]}"
        claims.append(Claim(name, times(PIPELINES, MEMORY), "x", MAX_MEMORY, at_most, turn_s=turn_s))
    return claims


def conclude(results: Sequence[CellResult]) -> Report:
    """Returns the report: the claims, the rows and the picture of the cells so far."""
    claims = [
        claim for each in results for load in LOADS for claim in claims_under(load, each.contests[load], each.name)
    ]
    return Report("tenants", claims, [row for each in results for row in rows_of(each)], panels_of(results))


def rows_of(result: CellResult) -> list[dict[str, Any]]:
    """Returns one row for each rival under each load, and the rows of facts.

    The 99th percentile and the frames of each camera are those of all turns together. ``smallest_share`` is 1 if all
    cameras had equally many results, and 0 if a camera had none.
    """
    rows = []
    for load in LOADS:
        for rival in RIVALS:
            ages = result.ages[load][rival]
            memory = {"memory_mb": result.samples(load, rival, MEMORY)} if load == TOO_FAST else {}
            found = measured(
                frames_per_s=result.samples(load, rival, HZ),
                age_p50_ms=in_ms(result.samples(load, rival, AGE)),
                **memory,
            )
            all_ages = [[1e3 * age for of_camera in turn for age in of_camera] for turn in ages]
            late = over_turns(lambda chosen, all_ages=all_ages: p99(together(all_ages, chosen)), len(ages))
            share = over_turns(lambda chosen, ages=ages: smallest_share([ages[turn] for turn in chosen]), len(ages))
            rows.append(
                {
                    "what": f"{result.name}, {load}",
                    "rival": rival,
                    **found,
                    **of_estimate(late, "age_p99_ms"),
                    **of_estimate(share, "smallest_share"),
                    "frames_of_cameras": frames_of_cameras(ages),
                    **result.usage[load][rival],
                }
            )
    return [*rows, *map(dict, result.facts)]


def frames_of_cameras(turns: Sequence[Sequence[Sequence[float]]]) -> list[int]:
    """Returns how many results each camera had in all turns together. ``turns`` has the ages in each turn."""
    return [sum(map(len, of_camera)) for of_camera in zip(*turns, strict=True)]


def smallest_share(turns: Sequence[Sequence[Sequence[float]]]) -> float:
    """Returns the fewest results that a camera had, divided by the mean of all cameras."""
    counts = frames_of_cameras(turns)
    return min(counts) / float(np.mean(counts))


def panels_of(results: Sequence[CellResult]) -> list[Panel]:
    """Returns three charts for each cell: frames a second, ages, and memory."""
    panels = []
    for each in results:
        for title, unit, load, figure in (
            ("frames/s", "1/s", TOO_FAST, HZ),
            ("age p50, too fast", "ms", TOO_FAST, AGE),
            ("age p50, half load", "ms", MODERATE, AGE),
            ("memory", "MB", TOO_FAST, MEMORY),
        ):
            samples = {rival: each.samples(load, rival, figure) for rival in RIVALS}
            if unit == "ms":
                samples = {rival: in_ms(values) for rival, values in samples.items()}
            panels.append(Panel(f"{each.name}: {title}", unit, samples))
    return panels
