"""Makes the claims about rivals that served the same traces of requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, Samples, estimate, maximum, minimum, ratio
from benchmarks.multi_tenant.replays import AT_ONCE, POISSON, Replays
from benchmarks.multi_tenant.rivals import BREADTH_FIRST, FUSE, MERGE, SEQUENTIAL, kind, with_lanes

FIGURES = {
    "per_second": "throughput",
    "execution_mean_s": "execution",
    "delay_mean_s": "mean delay",
    "delay_p99_s": "p99 delay",
}
RESPONSES = {"response_mean_s": "mean response", "response_p99_s": "p99 response"}
IN_TRAFFIC = {name: (FIGURES | RESPONSES)[name] for name in ("delay_mean_s", "delay_p99_s", "response_mean_s")}
GOALS = {"per_second": 2.7, "execution_mean_s": 0.53, "delay_mean_s": 0.5, "delay_p99_s": 0.37}  # the paper's, on a GPU
PAPER = {
    BREADTH_FIRST: {
        "per_second": "2.7x",
        "execution_mean_s": "0.53x",
        "delay_mean_s": "0.50x",
        "delay_p99_s": "0.37x",
    },
    SEQUENTIAL: {"per_second": "2.7x", "execution_mean_s": "0.51x"},  # 0.53 times the 0.97 of earlier work
}
GAP_GOAL, MERGE_GOAL, AT_ONCE_GOAL, BEST_GOAL = 0.7, 2.1, 0.97, 0.98
DELAY_MARGIN = 0.05


def ours(rivals: Sequence[str]) -> str:
    """Returns the name of the rival that works like the node: it merges, fuses, and uses lanes if there are any."""
    return with_lanes(FUSE) if with_lanes(FUSE) in rivals else FUSE


def claims_of(replays: Replays, is_heaviest: bool, on_gpu: bool, image_ratio: float) -> list[Claim]:
    """Returns the claims that compare the scheduler with the rivals at one load.

    At each load, its delays are compared with those of the best rival. At the heaviest load, the claims of paper 001
    are added.

    Args:
        replays: the turns at this load.
        is_heaviest: whether this is the heaviest load.
        on_gpu: whether the models run on a GPU. The goals are then those of the paper. On a CPU, the goal is to be no
            worse than the rival.
        image_ratio: see ``delay_bound``.
    """
    mine, at, turn_s = ours(replays.rivals), f"at {replays.part:g} times capacity", replays.contest.turn_s
    others = [name for name in replays.rivals if kind(name) not in (MERGE, FUSE)]
    claims = []
    if is_heaviest:
        throughputs = (replays.samples(name, "per_second") for name in (mine, SEQUENTIAL))
        gap = estimate(_part_of_gap, *throughputs, replays.bounds)
        name = f"{at}: part of the gap to the bound"  # below zero, sequential execution has the higher throughput
        claims.append(Claim(name, gap, "", GAP_GOAL, floor=-math.inf, turn_s=turn_s))
        for base in (BREADTH_FIRST, SEQUENTIAL):
            if base in replays.rivals:
                claims += [_against(replays, base, figure, on_gpu) for figure in FIGURES]
        if MERGE in replays.rivals:
            merged = in_turns(replays, MERGE, SEQUENTIAL, "per_second")
            name = f"{at}: throughput of merging alone, times sequential's"
            claims.append(Claim(name, merged, "x", MERGE_GOAL if on_gpu else 1.0, turn_s=turn_s, paper="2.1x"))
        worst = minimum([in_turns(replays, mine, other, "per_second") for other in others])
        claims.append(Claim(f"{at}: throughput, times the best rival's", worst, "x", BEST_GOAL, turn_s=turn_s))
        few = in_turns(replays, mine, SEQUENTIAL, "per_second", AT_ONCE)
        name = f"{AT_ONCE} at once: throughput, times sequential's"
        claims.append(Claim(name, few, "x", AT_ONCE_GOAL, turn_s=turn_s, paper="1.05x"))
    for figure, title in IN_TRAFFIC.items():
        worst = maximum([in_turns(replays, mine, other, figure) for other in others])
        goal = delay_bound(image_ratio, replays.part) if figure == "delay_mean_s" else 1.0
        name = f"{at}: {title}, times the best rival's"
        claims.append(Claim(name, worst, "x", goal, Direction.AT_MOST, turn_s=turn_s))
    return claims


def delay_bound(image_ratio: float, part: float) -> float:
    """Returns how long the mean queueing delay may be, times that of the best rival.

    With a queue that only grows, a request waits for the work before it, less the time in which that work arrived. If
    requests come ``part`` times as fast as they are served, this time is one ``part``-th of the work. A queue that does
    not grow has another law, so the bound is 1 there.

    Args:
        image_ratio: the time of an image in a merged batch, times that of a single image in the best rival.
        part: the rate of requests divided by sequential capacity.
    """
    if part <= 1.0:
        return 1.0
    arrived = 1 / part
    return min(1.0, max(0.0, (image_ratio - arrived) / (1 - arrived)) + DELAY_MARGIN)


def in_turns(replays: Replays, these: str, those: str, figure: str, what: str = POISSON) -> Estimate:
    """Returns one rival's figure divided by the other's, as the median over all turns.

    Args:
        replays: the turns.
        these, those: the names of the two rivals. The figure of ``those`` is the divisor.
        figure: the name of the figure, as in ``Log.times``.
        what: the trace that was served: POISSON or AT_ONCE.
    """
    return ratio(replays.samples(these, figure, what), replays.samples(those, figure, what))


def _against(replays: Replays, base: str, figure: str, on_gpu: bool) -> Claim:
    return Claim(
        f"at {replays.part:g} times capacity: {FIGURES[figure]}, times {base}'s",
        in_turns(replays, ours(replays.rivals), base, figure),
        "x",
        GOALS[figure] if on_gpu else 1.0,
        Direction.AT_LEAST if figure == "per_second" else Direction.AT_MOST,
        turn_s=replays.contest.turn_s,
        paper=PAPER[base].get(figure, ""),
    )


def _part_of_gap(mine: Samples, sequential: Samples, bound: Samples) -> Any:
    """Returns a rival's gain over sequential execution, as a share of the bound's gain.

    Each gain is a median over the turns. A ratio of the two gains of one turn would mean nothing: the bound's gain may
    be so small that noise decides.
    """
    gain, whole = (np.median(each / sequential, axis=-1) - 1 for each in (mine, bound))
    return gain / whole
