"""The claims of the benchmark: what splitting gains, and how near that is to the bound of two processors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, Samples, estimate, median, ratio
from benchmarks.rivals.paper_000 import PAPERS_BATCH, PAPERS_SMALL_BATCH, papers_gain
from benchmarks.two_processors.cell import AS_BUILT, BOTH_CORES, OPTIMISED, PREPARED, TWO_LANES, CellResult

MIN_OF_BOUND = 0.95
MAX_LATENCY = 1.1  # times that of the whole model: the paper's single-batch latency increases slightly (§6.5)
SPEED = "images_per_s"


def claims_of(results: Sequence[CellResult]) -> list[Claim]:
    """Returns all claims. For each model and engine, they are about one batch size: the paper's, or else the largest.

    Over cells with competitors, there is a claim each.
    """
    claims: list[Claim] = []
    alone = [each for each in results if not each.competitors]
    for model, engine in dict.fromkeys((each.model, each.engine) for each in alone):
        its = {each.batch_size: each for each in alone if (each.model, each.engine) == (model, engine)}
        shown = its.get(PAPERS_BATCH) or its[max(its)]
        claims += [bound_claim(shown), *gain_claims(shown), latency_claim(shown)]
        if PAPERS_SMALL_BATCH in its and shown.batch_size > PAPERS_SMALL_BATCH:
            claims.append(growth_claim(its[PAPERS_SMALL_BATCH], shown))
    return claims + [over(each, OPTIMISED, papers=True) for each in results if each.competitors]


def bound_claim(result: CellResult) -> Claim:
    """Returns the claim that splitting reaches the bound of its stages, while both run at the same time."""
    name = f"{result.name}: split, part of the bound of its stages"
    return Claim(name, median(part_of_bound(result, result.split)), "", MIN_OF_BOUND, turn_s=result.turn_s)


def gain_claims(result: CellResult) -> list[Claim]:
    """Returns the claims that compare the planner's split point with whole models on one processor, then on both."""
    rivals = {PREPARED: True, AS_BUILT: True, OPTIMISED: False, BOTH_CORES: False, TWO_LANES: False}
    return [over(result, rival, papers) for rival, papers in rivals.items() if result.has(rival, SPEED)]


def over(result: CellResult, rival: str, papers: bool) -> Claim:
    """Returns the claim that the planner's split point is not slower than a rival.

    Args:
        result: the cell.
        rival: the rival's name.
        papers: whether the paper's gain is for the same comparison.
    """
    return Claim(
        f"{result.name}: split, times {rival}",
        gain(result, result.split, rival),
        unit="x",
        goal=1.0,
        turn_s=result.turn_s,
        paper=papers_gain(result.model, result.batch_size) if papers else "",
    )


def growth_claim(small: CellResult, large: CellResult) -> Claim:
    """Returns the claim that splitting gains at least as much with the larger batches (§6.4)."""
    turns = min(len(each.samples(each.split, SPEED)) for each in (small, large))
    samples = [each.samples(rival, SPEED)[-turns:] for each in (large, small) for rival in (each.split, PREPARED)]

    def growth(split: Samples, whole: Samples, small_split: Samples, small_whole: Samples) -> Samples:
        found: Samples = np.median(split / whole, axis=-1) / np.median(small_split / small_whole, axis=-1)
        return found

    name = f"{large.name}: gain over {PREPARED}, times that at batch {small.batch_size}"
    return Claim(name, estimate(growth, *samples), "x", 1.0, turn_s=small.turn_s + large.turn_s)


def latency_claim(result: CellResult) -> Claim:
    """Returns the claim about the time from the closing of a batch until its results are out (§6.5)."""
    found = ratio(result.samples(result.split, "batch_s"), result.samples(PREPARED, "batch_s"))
    name = f"{result.name}: time of a batch in the split, times {PREPARED}"
    return Claim(name, found, "x", MAX_LATENCY, Direction.AT_MOST, turn_s=result.turn_s)


def gain(result: CellResult, rival: str, other: str) -> Estimate:
    """Returns a rival's throughput divided by that of the rival ``other``, in the same turn."""
    return ratio(result.samples(rival, SPEED), result.samples(other, SPEED))


def part_of_bound(result: CellResult, rival: str, kind: str = "s") -> Samples:
    """Returns the seconds of the slower stage divided by the time between two batches, in each turn. Its limit is 1.

    Args:
        result: the cell.
        rival: the rival's name.
        kind: ``s`` for a stage's seconds while both stages run, ``alone_s`` for its seconds alone.
    """
    stages_s = [result.samples(rival, f"{stage}_{kind}") for stage in ("backbone", "head")]
    return np.max(np.asarray(stages_s), axis=0) * np.asarray(result.samples(rival, SPEED)) / result.batch_size


def bound_gain(result: CellResult, rival: str) -> Samples:
    """Returns how many times as fast as the whole model a split can be, in each turn.

    This is the time of a batch in the prepared whole model, over that of the slower stage while both stages run.
    """
    whole_s, stages_s = (
        np.asarray([result.samples(name, f"{stage}_s") for stage in ("backbone", "head")]) for name in (PREPARED, rival)
    )
    found: Samples = whole_s.sum(axis=0) / stages_s.max(axis=0)
    return found


def slow_down(result: CellResult, rival: str, stage: str) -> Samples:
    """Returns how many times as long as alone a stage takes while the other stage runs, in each turn."""
    busy_s, alone_s = (np.asarray(result.samples(rival, f"{stage}_{kind}")) for kind in ("s", "alone_s"))
    found: Samples = busy_s / alone_s
    return found
