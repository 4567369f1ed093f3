"""What is claimed of a model whose weights are read layer by layer on a CPU, and by which samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import _layering_child as child
import numpy as np
from _layering_plan import ALLOWED_S, SHARE
from _layering_turns import READ_B_S, READ_CORE_S
from numpy.typing import NDArray

from split_infer_ros.telemetry.claim import Claim, Direction
from split_infer_ros.telemetry.estimate import Estimate, estimate, exact, maximum, median, ratio
from split_infer_ros.telemetry.turns import Contest
from split_infer_ros.weight_streaming.residency import ASYNCHRONOUS, RESIDENT, TWO_STAGE

COMPUTE_BOUND = ("yolov3", "retinanet")  # those whose reading is to hide behind computing
TILES = {TWO_STAGE: 1.1, ASYNCHRONOUS: 2.0}  # times the largest tile, that these may hold
CONSTANT_MB = 10.0  # a reader, its thread and what it compares with
HUGE_PAGE_MB = 2.1  # by which the memory of two processes may differ by chance
JITTER = 5.0  # %, by which weights that are read may seem quicker than resident ones
MB = 1e6

Figures = Mapping[str, Sequence[float]]

PAPER = {  # YOLOv4, 245.8 MB, on a Jetson AGX Xavier; its percentages are of two copies of the weights
    TWO_STAGE: "18.0 MB: one largest layer, 96.3 % less than two copies of the weights (YOLOv4)",
    ASYNCHRONOUS: "36.0 MB: two largest layers, 92.7 % less than two copies of the weights (YOLOv4)",
    child.CHOSEN: "52.8 MB: 21.5 % of one copy, 10.7 % of two (YOLOv4)",
    RESIDENT: "below 1.0 ms of 160.8 ms, 0.6 % (YOLOv4)",
}


@dataclass(frozen=True)
class Facts:
    """What is counted of a model and of its ways.

    Attributes:
        name: of the model.
        weights: bytes of one copy.
        streamed: bytes that a pass reads where nothing stays.
        largest: bytes of the largest layer, or of the largest part in which one is read.
        largest_block: bytes of what is read for one step.
        threads: that compute.
        memory: bytes that hold weights, by way.
        reads: bytes that each pass reads, by way.
        equal: whether results are the resident way's, by way.
    """

    name: str
    weights: int
    streamed: int
    largest: int
    largest_block: int
    threads: int
    memory: Mapping[str, int]
    reads: Mapping[str, int]
    equal: Mapping[str, bool]

    def paper(self, of: str) -> str:
        """The paper's figure, beside the one model of ours that is like the paper's."""
        return PAPER[of] if self.name == "yolov3" else ""


def counted(facts: Facts) -> list[Claim]:
    """What needs no turns."""
    name, memory = facts.name, facts.memory
    same = exact(sum(facts.equal.values()))
    claims = [Claim(f"{name}: ways that give the same bits", same, "", len(facts.equal))]
    for way, goal in TILES.items():
        if way in memory:
            held = exact(memory[way] / facts.largest)
            claim = f"{name}: {way} holds, times the largest tile"
            claims.append(Claim(claim, held, "x", goal, Direction.AT_MOST, paper=facts.paper(way)))
    share = exact(100 * memory[child.CHOSEN] / facts.weights)
    claim = f"{name}: auto holds, of one copy of its weights"
    claims.append(Claim(claim, share, "%", 100 * SHARE, Direction.AT_MOST, paper=facts.paper(child.CHOSEN)))
    return claims


def claims_of_ways(facts: Facts, contest: Contest) -> list[Claim]:
    """How ``auto`` compares with resident weights and with its bound, and how good predictions are."""
    name, figures = facts.name, contest.figures
    resident, chosen = figures[RESIDENT], figures[child.CHOSEN]
    claims = []
    if name in COMPUTE_BOUND:
        allowed = max(100 * ALLOWED_S / float(np.median(resident)), 1.0)
        over = ratio(chosen, resident).times(100, -100)
        claim = f"{name}: auto's delay, over resident weights'"
        told = {"floor": -JITTER, "turn_s": contest.turn_s, "paper": facts.paper(RESIDENT)}
        claims.append(Claim(claim, over, "%", allowed, Direction.AT_MOST, **told))
    reached = ratio(bounds(facts, child.CHOSEN, figures), chosen).times(100)
    claims.append(Claim(f"{name}: auto, of its bound", reached, "%", 90.0, turn_s=contest.turn_s))
    off = [error(figures, way) for way in figures if predicted(way) in figures]
    claim = f"{name}: predicted delay, off by at most"
    return [*claims, Claim(claim, maximum(off), "%", 10.0, Direction.AT_MOST, turn_s=contest.turn_s)]


def predicted(way: str) -> str:
    """The name of the figure that says which delay a turn predicts for a way."""
    return f"{way}, predicted"


def error(figures: Figures, way: str) -> Estimate:
    """By how many percent predicted delays differ from measured ones."""

    def off(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(100 * np.abs(np.median(one / other, axis=-1) - 1))

    return estimate(off, figures[predicted(way)], figures[way])


def bounds(facts: Facts, way: str, figures: Figures) -> NDArray[np.float64]:
    """In each turn the longer of reading, and of computing and what reading takes of the same cores; seconds."""
    compute, bandwidth, core_s = (np.asarray(figures[name]) for name in (RESIDENT, READ_B_S, READ_CORE_S))
    read = facts.reads[way]
    return np.maximum(compute + core_s * read / facts.streamed / facts.threads, read / bandwidth)


def seen_bytes(facts: Facts, way: str, figures: Figures) -> NDArray[np.float64]:
    """Bytes that weights take as seen from outside, in each turn: more than where all layers lie in one place."""
    pairs = list(zip(figures[way], figures[child.NOTHING], strict=False))  # most ways are looked at once only
    return np.asarray([seen - nothing + facts.largest_block for seen, nothing in pairs])


def claims_seen(facts: Facts, contest: Contest) -> list[Claim]:
    """What is held as seen from outside."""
    name, claims = facts.name, []
    for way in TILES:
        if way in contest.figures:
            found = median(seen_bytes(facts, way, contest.figures)).times(1 / MB, -facts.memory[way] / MB)
            claim = f"{name}: {way}, seen from outside, holds more than its buffers by"
            told = {"floor": -HUGE_PAGE_MB, "turn_s": contest.turn_s}
            claims.append(Claim(claim, found, "MB", CONSTANT_MB, Direction.AT_MOST, **told))
    share = median(seen_bytes(facts, child.CHOSEN, contest.figures)).times(100 / facts.weights)
    claim = f"{name}: auto holds, seen from outside, of one copy of its weights"
    return [*claims, Claim(claim, share, "%", 100 * SHARE, Direction.AT_MOST, turn_s=contest.turn_s)]
