"""One model on the CPU: contests of the ways to have its weights, of the trade-off, and of memory from outside."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import _layering_child as child
import torch
from _layering_claims import (
    MB,
    TILES,
    Facts,
    bounds,
    claims_of_ways,
    claims_seen,
    counted,
    predicted,
    seen_bytes,
)
from _layering_peak import peak
from _layering_plan import Planned, placement, spread
from _layering_rivals import can_offload
from _layering_turns import READ_B_S, READ_CORE_S, Disk, Residencies, beside

from split_infer_ros.telemetry.claim import Claim
from split_infer_ros.telemetry.turns import Contest, take_turns
from split_infer_ros.weight_streaming.delay_model import predict
from split_infer_ros.weight_streaming.residency import RESIDENT
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

BESIDE = "resident, as much read in vain"
READS_NOTHING_AHEAD = (child.MAPPED, child.WHOLE, child.OFFLOADED)  # each pass is like the first one
TIMED_PASSES = 2  # by which layers are timed in each turn
HIDDEN = ("retinanet",)  # features take more than all weights do, and differ from run to run by more than these

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Effort:
    """How much is measured of each model.

    Attributes:
        ways: in which weights are, ``resident`` and ``auto`` among them.
        points: of the trade-off, at which its prediction is compared with what is measured.
        looks: whether memory is looked at from outside, in processes of their own.
    """

    ways: Sequence[str]
    points: int
    looks: bool


class Layered:
    """All contests of a model. As a context it ends what still reads.

    Args:
        planned: the model.
        effort: how much is measured.
    """

    def __init__(self, planned: Planned, effort: Effort) -> None:
        self._planned, self._stack = planned, ExitStack()
        self._partitions = {way: self._keep(planned.partition(way)) for way in effort.ways if _is_possible(way)}
        self._facts = facts_of(planned, self._partitions)
        points = {f"{point.memory / MB:.1f} MB": point for point in spread(planned, effort.points)}
        ways = self._partitions | {
            name: self._keep(planned.partition(child.CHOSEN, each)) for name, each in points.items()
        }
        if BESIDE in effort.ways:
            executor = self._stack.enter_context(ThreadPoolExecutor(1))
            ways[BESIDE] = beside(ways[RESIDENT], child.reading(planned.contents), executor)
        plans = planned.predicted() | {name: each.placement.plan for name, each in points.items()}
        self._plans = {way: plan for way, plan in plans.items() if way in ways}
        before = {way: int(way not in READS_NOTHING_AHEAD) for way in ways}  # what was read in a pause does not count
        self._turns = Residencies(ways, before, planned.images, Disk(planned.contents))
        self.ways = Contest("ways", self._turn, lambda contest: claims_of_ways(self._facts, contest))
        self.seen: Contest | None = None
        if effort.looks and planned.name not in HIDDEN:
            self.seen = Contest("memory", self._look, lambda contest: claims_seen(self._facts, contest))

    def __enter__(self) -> Layered:
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def take_turns(self, seconds: float) -> None:
        """Have all contests take turns for so long."""
        with torch.inference_mode():
            take_turns([each for each in (self.ways, self.seen) if each is not None], seconds)

    def claims(self) -> list[Claim]:
        """All that is claimed of the model."""
        claims = counted(self._facts) + claims_of_ways(self._facts, self.ways)
        return claims + (claims_seen(self._facts, self.seen) if self.seen is not None else [])

    def samples_ms(self) -> dict[str, list[float]]:
        """Each turn's delay, by way."""
        return {way: [round(1e3 * each, 3) for each in self.ways.figures[way]] for way in self._turns.names}

    def rows(self) -> list[Row]:
        """A row for each way; further points of the trade-off are ways by their memory."""
        return [self._row(way) for way in self._turns.names]

    def _row(self, way: str) -> Row:
        facts, figures, samples = self._facts, self.ways.figures, self.samples_ms()[way]
        partition = self._partitions.get(way)
        row: dict[str, Any] = {
            "model": facts.name,
            "way": way,
            "delay_ms": statistics.median(samples),
            "weights_mb": facts.weights / MB,
            "largest_mb": facts.largest / MB,
            "read_mb_s": statistics.median(figures[READ_B_S]) / MB,
            "read_cpu_ms": 1e3 * statistics.median(figures[READ_CORE_S]),
            "samples_ms": samples,
            **self._turns.usage.row(way),
        }
        if way in facts.reads:
            row["bound_ms"] = 1e3 * statistics.median(bounds(facts, way, figures))
            row["equal"] = facts.equal[way]
        if isinstance(partition, StreamedPartition):
            row["memory_mb"], row["stalled_s"] = facts.memory[way] / MB, partition.stats().stalled_s
        if self.seen is not None and way in self.seen.figures:
            row["seen_mb"] = [round(each / MB, 3) for each in seen_bytes(facts, way, self.seen.figures)]
        if way in self._plans:
            row["predicted_ms"] = 1e3 * statistics.median(figures[predicted(way)])
        return row

    def _turn(self, number: int) -> dict[str, float]:
        machine = self._planned.timed(TIMED_PASSES)  # predictions are by what was timed just before
        found = self._turns.turn(number)
        machine = replace(machine, bandwidth=found[READ_B_S])
        return found | {predicted(way): predict(plan, machine) for way, plan in self._plans.items()}

    def _look(self, number: int) -> dict[str, float]:
        """Memory in processes of their own, two at a time: it is the same however long they take.

        All ways once, and then those of which something is claimed.
        """
        planned = self._planned
        claimed = [way for way in self._partitions if number == 0 or way in (*TILES, child.CHOSEN)]
        ways = [child.NOTHING, *claimed]
        where = placement(planned.chosen)

        def look(way: str) -> float:
            return peak(planned.name, planned.path, way, where)

        with ThreadPoolExecutor(2) as threads:
            return dict(zip(ways, threads.map(look, ways), strict=True))

    def _keep(self, partition: child.Half) -> child.Half:
        if isinstance(partition, StreamedPartition):
            self._stack.callback(partition.close)
        return partition


def _is_possible(way: str) -> bool:
    return way != BESIDE and (way != child.OFFLOADED or can_offload())


def facts_of(planned: Planned, partitions: Mapping[str, child.Half]) -> Facts:
    """What is counted, and whether each way's results are those of resident weights."""
    contents, images = planned.contents, planned.images
    with torch.inference_mode():
        expected = partitions[RESIDENT](images)
        equal = {
            way: same(partition(images), expected, way != child.OFFLOADED) for way, partition in partitions.items()
        }
    streamed = sum(contents.sizes)
    stays = {RESIDENT: streamed, child.CHOSEN: sum(contents.sizes[: planned.chosen.placement.resident])}
    return Facts(
        name=planned.name,
        weights=streamed + contents.kept_bytes,
        streamed=streamed,
        largest=max(piece.nbytes for own in contents.pieces.values() for piece in own),
        largest_block=max(contents.sizes),
        threads=torch.get_num_threads(),
        memory={
            way: partition.weight_bytes
            for way, partition in partitions.items()
            if isinstance(partition, StreamedPartition)
        },
        reads={way: streamed - stays.get(way, 0) for way in partitions},
        equal=equal,
    )


def same(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], bits: bool = True) -> bool:
    """Bit for bit; or, of kernels that sum in another order, within 1e-3 of the largest value."""
    pairs = zip(found, expected, strict=True)
    return all(torch.equal(a, b) if bits else bool((a - b).abs().max() <= 1e-3 * b.abs().max()) for a, b in pairs)
