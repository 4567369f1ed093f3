"""What the splitting benchmark claims of what its turns gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from _split_contest import AS_BUILT, OPTIMISED, PAPERS, PREPARED, WHOLE, Found

from split_infer_ros.telemetry.claim import Claim, Direction
from split_infer_ros.telemetry.estimate import (
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
from split_infer_ros.telemetry.report import Panel, Report

PAPERS_BATCH = 64
PAPERS_GAINS = {"mobilenet_v2": "1.112x", "efficientnet_b2": "1.129x", "vit_tiny": "1.212x"}  # its Table 1
PAPERS_LEAST_GAIN = 16, "1.03 to 1.04x"  # its §6.4, of all three
DETECTORS_GOAL = 1.1


def claims_of(found: Found) -> list[Claim]:
    """What rests on one model at one batch size alone."""
    return gains_of(found) + ([planners_claim([found])] if found.fixed else [])


def gains_of(found: Found) -> list[Claim]:
    """The planner's split against both baselines."""
    name, turn_s = f"{found.model}, batch {found.batch_size}: split", found.turn_s
    return [
        Claim(
            f"{name}, times the baseline as built",
            gain(found, found.planners, AS_BUILT),
            "x",
            1.25,
            turn_s=turn_s,
            paper=papers_gain(found),
        ),
        Claim(f"{name}, times the baseline prepared", gain(found, found.planners, PREPARED), "x", 1.0, turn_s=turn_s),
    ]


def papers_gain(found: Found) -> str:
    """The paper's gain over its baseline, which is as built, for this model at this batch size; empty: none."""
    if found.model not in PAPERS_GAINS:
        return ""
    if found.batch_size == PAPERS_BATCH:
        return PAPERS_GAINS[found.model]
    return PAPERS_LEAST_GAIN[1] if found.batch_size == PAPERS_LEAST_GAIN[0] else ""


def gain(found: Found, rival: str, over: str) -> Estimate:
    """A rival's throughput, times another one's."""
    return ratio(found.samples(rival, "images_per_s"), found.samples(over, "images_per_s"))


def planners_claim(found: Sequence[Found]) -> Claim:
    """The planner's split point against every fixed one that had turns beside it."""
    compared = [each for each in found if each.fixed]
    ratios = [gain(each, each.planners, rival) for each in compared for rival in each.fixed]
    turn_s = sum(each.turn_s for each in compared)
    return Claim("planner's split point, part of the best fixed one, least", minimum(ratios), "x", 0.98, turn_s=turn_s)


def conclude(found: Sequence[Found], on_gpu: bool) -> Report:
    """The claims, which differ with and without a GPU, the rows and the picture."""
    sizes = [each.batch_size for each in found]
    size = PAPERS_BATCH if PAPERS_BATCH in sizes else max(sizes)
    shown = [each for each in found if each.batch_size == size]
    claims = [claim for each in shown for claim in gains_of(each)]
    if on_gpu:
        claims += gpu_claims(found)
    claims.append(planners_claim(found))
    off = mean([100 * prediction_off(each) for each in found])  # a prediction is a sample, however often it is checked
    claims.append(Claim("predicted throughput, off by, mean", off, "%", 10.0, Direction.AT_MOST))
    agreement = exact(min(each.agreement for each in found))
    claims.append(Claim("best class as the baseline's, least", agreement, "", 0.99))
    panels = [
        Panel(
            f"{each.model}, images/s at batch {size}",
            "1/s",
            {rival: each.samples(rival, "images_per_s") for rival in bars(each)},
        )
        for each in shown
    ]
    return Report("unified_splitting", claims, [row for each in found for row in rows_of(each)], panels)


def gpu_claims(found: Sequence[Found]) -> list[Claim]:
    """Those for which the backbone needs a processor of its own."""
    claims = []
    for model in dict.fromkeys(each.model for each in found):
        mine = [each for each in found if each.model == model]
        gains = minimum([gain(each, each.planners, OPTIMISED) for each in mine])
        turn_s = sum(each.turn_s for each in mine)
        goal = DETECTORS_GOAL if mine[0].detects else 1.0
        claims.append(Claim(f"{model}: split, times the optimised, least", gains, "x", goal, turn_s=turn_s))
    overlap = jointly(
        lambda parts: np.median(parts, axis=0),
        [(lambda values: np.median(values, axis=-1), overlap_efficiency(each, each.planners)) for each in found],
    )
    turn_s = sum(each.turn_s for each in found)
    claims.append(Claim("overlap efficiency, median", overlap, "", 0.95, turn_s=turn_s))
    return claims


def prediction_off(found: Found) -> float:
    """How far the profile's throughput is from the turns' median, in parts of that."""
    return abs(found.predicted / float(np.median(found.samples(found.planners, "images_per_s"))) - 1)


def overlap_efficiency(found: Found, split: str) -> Samples:
    """The slower stage's time for a batch alone, in parts of the time between two batches, turn by turn."""
    stages = [found.samples(split, "backbone_alone_s"), found.samples(split, "head_alone_s")]
    per_batch = found.batch_size / np.asarray(found.samples(split, "images_per_s"))
    return np.max(np.asarray(stages), axis=0) / per_batch


def jointly(combine: Statistic, parts: Sequence[tuple[Statistic, Samples]]) -> Estimate:
    """A figure made of one statistic of each contest, from as many turns as the shortest of them has."""
    turns = min(len(samples) for _, samples in parts)

    def statistic(*samples: Samples) -> Any:
        return combine(np.asarray([of(values) for (of, _), values in zip(parts, samples, strict=True)]))

    return estimate(statistic, *(samples[-turns:] for _, samples in parts))


def rows_of(found: Found) -> list[Mapping[str, Any]]:
    """One row for each configuration; medians of the turns, and where two are given, ends of an interval."""
    rows = []
    for row in found.rows:
        rival = str(row["configuration"])
        speed = median(found.samples(rival, "images_per_s"))
        more = {
            "images_per_s": speed.value,
            "images_per_s_interval": [speed.low, speed.high],
            "turns": speed.turns,
            "latency_ms": 1e3 * median_of(found, rival, "latency_s"),
        }
        if rival not in WHOLE:
            more |= split_facts(found, rival)
        rows.append({**row, **more})
    return rows


def split_facts(found: Found, rival: str) -> dict[str, Any]:
    """What only a split has: gains, how busy its stages are, and how well it was predicted."""
    built, prepared = gain(found, rival, AS_BUILT), gain(found, rival, PREPARED)
    facts = {
        "times_as_built": built.value,
        "times_as_built_interval": [built.low, built.high],
        "times_prepared": prepared.value,
        "times_prepared_interval": [prepared.low, prepared.high],
        "backbone_busy": median_of(found, rival, "backbone_busy"),
        "head_busy": median_of(found, rival, "head_busy"),
        "backbone_alone_ms": 1e3 * median_of(found, rival, "backbone_alone_s"),
        "head_alone_ms": 1e3 * median_of(found, rival, "head_alone_s"),
        "overlap_efficiency": float(np.median(overlap_efficiency(found, rival))),
    }
    if rival == found.planners:
        facts |= {"predicted_images_per_s": found.predicted, "prediction_off": prediction_off(found)}
    return facts


def median_of(found: Found, rival: str, figure: str) -> float:
    """A rival's figure in its median turn."""
    return float(np.median(found.samples(rival, figure)))


def bars(found: Found) -> list[str]:
    """What the picture shows: whole models, and the planner's and the paper's split."""
    return [*WHOLE, found.planners, *(rival for rival in found.fixed if rival == PAPERS)]
