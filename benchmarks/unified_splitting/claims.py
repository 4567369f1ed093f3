"""The claims, rows and picture of the splitting benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import (
    Estimate,
    Samples,
    Statistic,
    estimate,
    exact,
    mean,
    median,
    minimum,
    ratio,
)
from benchmarks.common.report import Panel, Report
from benchmarks.rivals.paper_000 import PAPERS_BATCH, papers_gain
from benchmarks.unified_splitting.contest import (
    AS_BUILT,
    OPTIMISED,
    PAPERS,
    PREPARED,
    TWO_PROCESSES,
    WHOLE_MODELS,
    MatchResult,
)

DETECTORS_GOAL = 1.1
COPIES_CLAIM = "copy calls that splitting adds, planner's split point, most"


def claims_of(result: MatchResult) -> list[Claim]:
    """Returns the claims about a single model at one batch size."""
    return gains_of(result) + ([planners_claim([result])] if result.fixed else [])


def gains_of(result: MatchResult) -> list[Claim]:
    """Returns the claims that compare the planner's split point with the baselines as built and prepared."""
    name, turn_s = f"{result.model}, batch {result.batch_size}: split", result.turn_s
    return [
        Claim(
            f"{name}, times the baseline as built",
            gain(result, result.planners, AS_BUILT),
            unit="x",
            goal=1.25,
            turn_s=turn_s,
            paper=papers_gain(result.model, result.batch_size),
        ),
        Claim(
            f"{name}, times the baseline prepared",
            gain(result, result.planners, PREPARED),
            unit="x",
            goal=1.0,
            turn_s=turn_s,
        ),
    ]


def gain(result: MatchResult, rival: str, over: str) -> Estimate:
    """Returns a rival's throughput divided by that of the rival ``over``, in the same turn."""
    return ratio(result.samples(rival, "images_per_s"), result.samples(over, "images_per_s"))


def planners_claim(results: Sequence[MatchResult]) -> Claim:
    """Returns the claim that compares the planner's split point with every fixed split point that competed with it."""
    compared = [each for each in results if each.fixed]
    ratios = [gain(each, each.planners, rival) for each in compared for rival in each.fixed]
    turn_s = sum(each.turn_s for each in compared)
    return Claim(
        "planner's split point, part of the best fixed one, least", minimum(ratios), unit="x", goal=0.98, turn_s=turn_s
    )


def conclude(results: Sequence[MatchResult], on_gpu: bool) -> Report:
    """Returns the report: the claims (more of them with a GPU), the rows and the picture."""
    sizes = [each.batch_size for each in results]
    size = PAPERS_BATCH if PAPERS_BATCH in sizes else max(sizes)
    shown = [each for each in results if each.batch_size == size]
    claims = [claim for each in shown for claim in gains_of(each)]
    if on_gpu:
        claims += gpu_claims(results)
    claims.append(planners_claim(results))
    # Each prediction is one sample, however many turns checked it.
    error = mean([100 * prediction_error(each) for each in results])
    claims.append(Claim("predicted throughput, off by, mean", error, unit="%", goal=10.0, direction=Direction.AT_MOST))
    claims.append(Claim(COPIES_CLAIM, exact(copies_added(results)), unit="", goal=0.0, direction=Direction.AT_MOST))
    claims += [threads_claim(each) for each in shown]
    agreement = exact(min(each.agreement for each in results))
    claims.append(Claim("best class as the baseline's, least", agreement, unit="", goal=0.99))
    panels = [
        Panel(
            f"{each.model}, images/s at batch {size}",
            "1/s",
            {rival: each.samples(rival, "images_per_s") for rival in shown_rivals(each)},
        )
        for each in shown
    ]
    rows = [row for each in results for row in rows_of(each)]
    return Report("unified_splitting", claims=claims, rows=rows, panels=panels)


def gpu_claims(results: Sequence[MatchResult]) -> list[Claim]:
    """Returns the claims that are made only on a GPU: gains over the optimised rival, and overlap efficiency."""
    claims = []
    for model in dict.fromkeys(each.model for each in results):
        of_model = [each for each in results if each.model == model]
        gains = minimum([gain(each, each.planners, OPTIMISED) for each in of_model])
        turn_s = sum(each.turn_s for each in of_model)
        goal = DETECTORS_GOAL if of_model[0].detects else 1.0
        claims.append(Claim(f"{model}: split, times the optimised, least", gains, unit="x", goal=goal, turn_s=turn_s))
    overlap = jointly(
        lambda parts: np.median(parts, axis=0),
        [(lambda values: np.median(values, axis=-1), overlap_efficiency(each, each.planners)) for each in results],
    )
    turn_s = sum(each.turn_s for each in results)
    claims.append(Claim("overlap efficiency, median", overlap, unit="", goal=0.95, turn_s=turn_s))
    return claims


def copies_added(results: Sequence[MatchResult]) -> float:
    """Returns how many copy calls the hand-over within one process adds at a planner's split point, at most."""
    rows = [row for each in results for row in each.rows if row["configuration"] == each.planners]
    return float(max(row["copy_calls_added"] for row in rows))


def threads_claim(result: MatchResult) -> Claim:
    """Returns the claim that two workers in one process are not slower than in two processes."""
    return Claim(
        f"{result.model}, batch {result.batch_size}: two threads, times two processes",
        gain(result, result.planners, TWO_PROCESSES),
        unit="x",
        goal=0.97,
        turn_s=result.turn_s,
    )


def prediction_error(result: MatchResult) -> float:
    """Returns by which share the throughput that the profile predicts differs from the median over the turns."""
    measured = float(np.median(result.samples(result.planners, "images_per_s")))
    return abs(result.predicted_images_per_s / measured - 1)


def overlap_efficiency(result: MatchResult, rival: str) -> Samples:
    """Returns the overlap efficiency of a rival in each turn.

    It is the time that the slower stage alone needs for a batch, divided by the time between two batches. Its limit is
    1.
    """
    stages_s = [result.samples(rival, "backbone_alone_s"), result.samples(rival, "head_alone_s")]
    period_s = result.batch_size / np.asarray(result.samples(rival, "images_per_s"))
    return np.max(np.asarray(stages_s), axis=0) / period_s


def jointly(combine: Statistic, parts: Sequence[tuple[Statistic, Samples]]) -> Estimate:
    """Returns a figure that combines one statistic of each contest.

    Of each contest, only the last turns are used, as many as the contest with the fewest turns has.

    Args:
        combine: combines the statistics of all contests. It reduces their first axis.
        parts: for each contest, the statistic and its samples.
    """
    turns = min(len(samples) for _, samples in parts)

    def statistic(*samples: Samples) -> Any:
        return combine(np.asarray([of(values) for (of, _), values in zip(parts, samples, strict=True)]))

    return estimate(statistic, *(samples[-turns:] for _, samples in parts))


def rows_of(result: MatchResult) -> list[Mapping[str, Any]]:
    """Returns one row for each configuration, with medians over the turns. A pair of values is a 95 % interval."""
    rows = []
    for row in result.rows:
        rival = str(row["configuration"])
        speed = median(result.samples(rival, "images_per_s"))
        figures = {
            "images_per_s": speed.value,
            "images_per_s_interval": [speed.low, speed.high],
            "turns": speed.turns,
            "latency_ms": 1e3 * median_of(result, rival, "latency_s"),
        }
        if rival not in WHOLE_MODELS:
            figures |= split_figures(result, rival)
        rows.append({**row, **figures})
    return rows


def split_figures(result: MatchResult, rival: str) -> dict[str, Any]:
    """Returns the figures that only a split model has: gains, busy shares of its stages, and the prediction."""
    built, prepared = gain(result, rival, AS_BUILT), gain(result, rival, PREPARED)
    figures = {
        "times_as_built": built.value,
        "times_as_built_interval": [built.low, built.high],
        "times_prepared": prepared.value,
        "times_prepared_interval": [prepared.low, prepared.high],
        "backbone_busy": median_of(result, rival, "backbone_busy"),
        "head_busy": median_of(result, rival, "head_busy"),
        "backbone_alone_ms": 1e3 * median_of(result, rival, "backbone_alone_s"),
        "head_alone_ms": 1e3 * median_of(result, rival, "head_alone_s"),
        "overlap_efficiency": float(np.median(overlap_efficiency(result, rival))),
    }
    if rival == result.planners:
        figures |= {
            "predicted_images_per_s": result.predicted_images_per_s,
            "prediction_off": prediction_error(result),
        }
    return figures


def median_of(result: MatchResult, rival: str, figure: str) -> float:
    """Returns the median of a rival's figure over the turns."""
    return float(np.median(result.samples(rival, figure)))


def shown_rivals(result: MatchResult) -> list[str]:
    """Returns the rivals of the picture: the whole models, and the planner's and the paper's split point."""
    return [*WHOLE_MODELS, result.planners, TWO_PROCESSES, *(rival for rival in result.fixed if rival == PAPERS)]
