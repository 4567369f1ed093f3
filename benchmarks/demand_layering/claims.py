"""The claims about weight streaming on a CPU, and the figures that decide them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, estimate, exact, maximum, median, ratio
from benchmarks.common.turns import Contest
from benchmarks.demand_layering import child
from benchmarks.demand_layering.plan import ALLOWED, MAX_SHARE
from benchmarks.demand_layering.table import PAPERS_MODEL
from benchmarks.demand_layering.turns import READ_AFTER_B_S, READ_B_S, READ_BEFORE_B_S, READ_CORE_S

COMPUTE_BOUND = (PAPERS_MODEL, "yolov3", "retinanet")  # models that should hide reading behind computing
MAX_TILES = {child.TWO_STAGE: 1.1, child.ASYNCHRONOUS: 1.1, child.SYNCHRONOUS: 2.1}  # memory, in largest tiles
START, STEADY = "peak up to the first result", "peak of later passes"  # in bytes
MAX_START = 1.3  # times the memory of later passes: a start never holds the whole model
CONSTANT_MB = 10.0  # allowed for the prefetcher, its thread and the process that it is compared with
HUGE_PAGE_MB = 2.1  # the memory of two processes may differ by so much by chance
JITTER = 0.05  # by this share of the delay, streamed weights may seem faster than resident ones
MB = 1e6

Figures = Mapping[str, Sequence[float]]

PAPER = {  # 245.8 MB on a Jetson AGX Xavier; its percentages are of two copies of the weights
    child.TWO_STAGE: "18.0 MB: one largest layer, 96.3 % less than two copies of the weights",
    child.ASYNCHRONOUS: "36.0 MB: a largest layer on CPU and GPU each, 92.7 % less than two copies",
    child.SYNCHRONOUS: "72.0 MB: two largest layers on CPU and GPU each, 85.4 % less than two copies",
    child.AUTO: "52.8 MB: 21.5 % of one copy, 10.7 % of two",
    child.RESIDENT: "below 1.0 ms of 160.8 ms, 0.6 %",
}


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model and its residencies that are counted, not timed.

    Attributes:
        name: the model's name.
        weight_bytes: the bytes of one copy of the weights.
        streamed_bytes: the bytes that a pass reads if no block is resident.
        max_tile_bytes: the bytes of the largest layer, or of the largest tile if layers are cut into tiles.
        max_block_bytes: the bytes of the largest block, the most that is read for one step.
        num_threads: the number of threads that compute.
        memory_bytes: the bytes of memory that hold weights, by residency.
        read_bytes: the bytes that each pass reads, by residency.
        is_equal: whether the results equal those with resident weights, by residency; see ``same``.
    """

    name: str
    weight_bytes: int
    streamed_bytes: int
    max_tile_bytes: int
    max_block_bytes: int
    num_threads: int
    memory_bytes: Mapping[str, int]
    read_bytes: Mapping[str, int]
    is_equal: Mapping[str, bool]

    def paper(self, residency: str) -> str:
        """Returns the figure of paper 002 for a residency as text; empty if this is not the model of the paper."""
        return PAPER[residency] if self.name == PAPERS_MODEL else ""


def counted_claims(facts: ModelFacts) -> list[Claim]:
    """Returns the claims that need no turns: about equal results, and about the memory of buffers.

    No claim is about the counted memory of ``auto``, because the benchmark itself sets its limit. ``outside_claims``
    judges the memory of ``auto`` as measured from outside.
    """
    name = facts.name
    equal = exact(sum(facts.is_equal.values()))
    claims = [Claim(f"{name}: ways that give the same bits", equal, "", len(facts.is_equal))]
    for residency, goal in MAX_TILES.items():
        if residency in facts.memory_bytes:
            tiles = exact(facts.memory_bytes[residency] / facts.max_tile_bytes)
            claim = f"{name}: {residency} holds, times the largest tile"
            claims.append(Claim(claim, tiles, "x", goal, Direction.AT_MOST, paper=facts.paper(residency)))
    return claims


def delay_claims(facts: ModelFacts, contest: Contest) -> list[Claim]:
    """Returns the claims about the delay of ``auto`` and about predicted delays. A delay is the time of a pass."""
    name, figures = facts.name, contest.figures
    resident, auto = figures[child.RESIDENT], figures[child.AUTO]
    claims = []
    if name in COMPUTE_BOUND:
        claims.append(
            Claim(
                f"{name}: auto's delay, over resident weights'",
                estimate(added_ms, auto, resident),
                "ms",
                1e3 * ALLOWED.goal_s(0.0),
                Direction.AT_MOST,
                floor=-1e3 * JITTER * float(np.median(resident)),
                turn_s=contest.turn_s,
                paper=facts.paper(child.RESIDENT),
            )
        )
    reached = ratio(delay_bounds(facts, child.AUTO, figures), auto).times(100)
    claims.append(Claim(f"{name}: auto, of its bound", reached, "%", 90.0, turn_s=contest.turn_s))
    errors = [prediction_error(figures, residency) for residency in figures if prediction_of(residency) in figures]
    claim = f"{name}: predicted delay, off by at most"
    claims.append(Claim(claim, maximum(errors), "%", 10.0, Direction.AT_MOST, turn_s=contest.turn_s))
    return claims


def added_ms(longer: NDArray[np.float64], shorter: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns by how many ms one delay is longer than another of the same turn, in the median; both in seconds."""
    return np.asarray(1e3 * np.median(longer - shorter, axis=-1))


def disk_spread(figures: Figures) -> float:
    """Returns the difference between the disk's bandwidths before and after a turn, as a share of their mean.

    It is the median over all turns.

    No prediction of a reading time can be more precise on average.
    """
    before, after = np.asarray(figures[READ_BEFORE_B_S]), np.asarray(figures[READ_AFTER_B_S])
    return float(np.median(2 * np.abs(after - before) / (after + before)))


def prediction_of(residency: str) -> str:
    """Returns the name of the figure that holds the predicted delay of a residency."""
    return f"{residency}, predicted"


def prediction_error(figures: Figures, residency: str) -> Estimate:
    """Returns by how many percent the predicted delays of a residency differ from the measured ones.

    The percentage is that of the median ratio over all turns.
    """

    def error(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(100 * np.abs(np.median(predicted / measured, axis=-1) - 1))

    return estimate(error, figures[prediction_of(residency)], figures[residency])


def delay_bounds(facts: ModelFacts, residency: str, figures: Figures) -> NDArray[np.float64]:
    """Returns the shortest possible delay of a residency in each turn (the bound), in seconds.

    The bound is the longer of two times: reading, and computing plus the time that reading takes of the same cores.
    """
    names = (child.RESIDENT, READ_B_S, READ_CORE_S)
    compute_s, bandwidth, core_s = (np.asarray(figures[name]) for name in names)
    read_bytes = facts.read_bytes[residency]
    read_core_s = core_s * read_bytes / facts.streamed_bytes / facts.num_threads
    return np.maximum(compute_s + read_core_s, read_bytes / bandwidth)


def outside_bytes(facts: ModelFacts, residency: str, figures: Figures) -> NDArray[np.float64]:
    """Returns the bytes of memory for weights in each turn, as measured from outside.

    They are the peak of the residency's process minus that of a process with all layers in one place, plus the bytes of
    this place.
    """
    pairs = zip(figures[residency], figures[child.NOTHING], strict=False)  # most residencies are measured only once
    return np.asarray([peak - nothing + facts.max_block_bytes for peak, nothing in pairs])


def outside_claims(facts: ModelFacts, contest: Contest) -> list[Claim]:
    """Returns the claims about memory measured from outside."""
    name, claims = facts.name, []
    for residency in MAX_TILES:
        if residency in contest.figures:
            buffers_mb = facts.memory_bytes[residency] / MB
            claims.append(
                Claim(
                    f"{name}: {residency}, seen from outside, holds more than its buffers by",
                    median(outside_bytes(facts, residency, contest.figures)).times(1 / MB, -buffers_mb),
                    "MB",
                    CONSTANT_MB,
                    Direction.AT_MOST,
                    floor=-HUGE_PAGE_MB,
                    turn_s=contest.turn_s,
                )
            )
    if START in contest.figures:
        start = ratio(contest.figures[START], contest.figures[STEADY])
        claim = f"{name}: peak up to the first result, times that of later passes"
        claims.append(Claim(claim, start, "x", MAX_START, Direction.AT_MOST, turn_s=contest.turn_s))
    share = median(outside_bytes(facts, child.AUTO, contest.figures)).times(100 / facts.weight_bytes)
    claim = f"{name}: auto holds, seen from outside, of one copy of its weights"
    paper, turn_s = facts.paper(child.AUTO), contest.turn_s
    claims.append(Claim(claim, share, "%", 100 * MAX_SHARE, Direction.AT_MOST, turn_s=turn_s, paper=paper))
    return claims
