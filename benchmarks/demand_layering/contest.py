"""The contests of one model on the CPU: the delays of its residencies, and their memory measured from outside."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.common.claim import Claim
from benchmarks.common.turns import Contest, take_turns
from benchmarks.demand_layering import child
from benchmarks.demand_layering.claims import (
    MAX_TILES,
    MB,
    START,
    STEADY,
    ModelFacts,
    counted_claims,
    delay_bounds,
    delay_claims,
    disk_spread,
    outside_bytes,
    outside_claims,
    prediction_of,
)
from benchmarks.demand_layering.facts import facts_of
from benchmarks.demand_layering.peak import measure_peak, measure_start
from benchmarks.demand_layering.plan import PlannedModel, auto_plan, spread_trials
from benchmarks.demand_layering.rivals import can_offload
from benchmarks.demand_layering.turns import READ_B_S, READ_BEFORE_B_S, READ_CORE_S, Disk, ResidencyTurns, with_reads
from split_infer_ros.weight_streaming.delay_model import predict_delay
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

WITH_READS = "resident, as much read in vain"
READS_NOTHING_AHEAD = (child.MAPPED, child.WHOLE, child.OFFLOADED)  # each pass is like the first one
PROFILE_PASSES = 4  # passes of the profile in each turn; the first one does not count
FEATURES_EXCEED_WEIGHTS = ("retinanet",)  # the memory of features differs from run to run by more than all weights

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Effort:
    """Says how much is measured of each model.

    Attributes:
        residencies: the residencies of the weights, rivals included; ``resident`` and ``auto`` must be among them.
        trials: at how many points of the trade-off the prediction is compared with a measurement.
        measures_peak: whether memory is measured from outside, in processes of their own.
    """

    residencies: Sequence[str]
    trials: int
    measures_peak: bool


class StreamingContest:
    """Holds all contests of a model on a CPU. ``open`` creates one. Leaving the context closes the partitions.

    Args:
        planned: the model.
        partitions: the partitions, by residency.
        facts: the counted facts about the partitions.
        plans: the memory plans whose delays are predicted, by residency or by the name of a trial. A trial is a further
            point of the trade-off between memory and delay.
        turns: runs the turns of all residencies and trials.
        measures_peak: whether memory is measured from outside.
        stack: closes the partitions.

    Attributes:
        delays: the contest of delays.
        peaks: the contest of memory measured from outside; None if it is not measured.
    """

    def __init__(
        self,
        planned: PlannedModel,
        *,
        partitions: Mapping[str, child.Partition],
        facts: ModelFacts,
        plans: Mapping[str, MemoryPlan],
        turns: ResidencyTurns,
        measures_peak: bool,
        stack: ExitStack,
    ) -> None:
        self._planned = planned
        self._partitions = partitions
        self._plans = plans
        self._turns = turns
        self._stack = stack
        self._facts = facts
        self.delays = Contest("ways", self._turn, lambda contest: delay_claims(self._facts, contest))
        self.peaks: Contest | None = None
        if measures_peak:
            self.peaks = Contest("memory", self._peak_turn, lambda contest: outside_claims(self._facts, contest))

    @classmethod
    def open(cls, planned: PlannedModel, effort: Effort) -> StreamingContest:
        """Opens the model in all residencies.

        Args:
            planned: the model.
            effort: how much is measured.
        """
        with ExitStack() as stack:
            partitions = {name: planned.partition(name) for name in effort.residencies if _is_possible(name)}
            trials = {f"{trial.memory_bytes / MB:.1f} MB": trial for trial in spread_trials(planned, effort.trials)}
            rivals = partitions | {name: planned.partition(child.AUTO, trial) for name, trial in trials.items()}
            for partition in rivals.values():
                if isinstance(partition, StreamedPartition):
                    stack.callback(partition.close)
            if WITH_READS in effort.residencies:
                executor = stack.enter_context(ThreadPoolExecutor(1))
                rivals[WITH_READS] = with_reads(rivals[child.RESIDENT], child.full_read(planned.packed), executor)
            plans = planned.predicted_plans() | {name: trial.memory_plan for name, trial in trials.items()}
            turns = ResidencyTurns(
                rivals,
                passes_before={name: int(name not in READS_NOTHING_AHEAD) for name in rivals},
                images=planned.images,
                disk=Disk(planned.packed),
            )
            return cls(
                planned,
                partitions=partitions,
                facts=facts_of(planned, partitions),
                plans={name: plan for name, plan in plans.items() if name in rivals},
                turns=turns,
                measures_peak=effort.measures_peak and planned.name not in FEATURES_EXCEED_WEIGHTS,
                stack=stack.pop_all(),
            )

    def __enter__(self) -> StreamingContest:
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def take_turns(self, seconds: float) -> None:
        """Runs turns of all contests for ``seconds`` seconds."""
        with torch.inference_mode():
            take_turns([contest for contest in (self.delays, self.peaks) if contest is not None], seconds)

    def claims(self) -> list[Claim]:
        """Returns all claims about the model."""
        claims = counted_claims(self._facts) + delay_claims(self._facts, self.delays)
        return claims + (outside_claims(self._facts, self.peaks) if self.peaks is not None else [])

    def samples_ms(self) -> dict[str, list[float]]:
        """Returns the delay of each turn in milliseconds, by residency and by the name of a trial."""
        return {name: [round(1e3 * delay_s, 3) for delay_s in self.delays.figures[name]] for name in self._turns.names}

    def rows(self) -> list[Row]:
        """Returns a row for each residency and trial. A trial's name is its memory."""
        return [self._row(residency) for residency in self._turns.names]

    def _row(self, residency: str) -> Row:
        facts, figures, samples_ms = self._facts, self.delays.figures, self.samples_ms()[residency]
        partition = self._partitions.get(residency)
        row: dict[str, Any] = {
            "model": facts.name,
            "way": residency,
            "delay_ms": statistics.median(samples_ms),
            "weights_mb": facts.weight_bytes / MB,
            "largest_mb": facts.max_tile_bytes / MB,
            "read_mb_s": statistics.median(figures[READ_B_S]) / MB,
            "read_cpu_ms": 1e3 * statistics.median(figures[READ_CORE_S]),
            "samples_ms": samples_ms,
            **self._turns.usage.row(residency),
        }
        if residency in facts.read_bytes:
            row["bound_ms"] = 1e3 * statistics.median(delay_bounds(facts, residency, figures))
            row["equal"] = facts.is_equal[residency]
        if isinstance(partition, StreamedPartition):
            row["memory_mb"], row["stalled_s"] = facts.memory_bytes[residency] / MB, partition.stats().stalled_s
        if self.peaks is not None and residency in self.peaks.figures:
            peaks = outside_bytes(facts, residency, self.peaks.figures)
            row["seen_mb"] = [round(nbytes / MB, 3) for nbytes in peaks]
        if residency in self._plans:
            row["predicted_ms"] = 1e3 * statistics.median(figures[prediction_of(residency)])
            row["disk_spread"] = disk_spread(figures)
        return row

    def _turn(self, number: int) -> dict[str, float]:
        """Runs a turn of all residencies. The delays are predicted from a profile that is measured just before.

        The profile's bandwidth is scaled: the disk may be faster or slower in the turn than just after the profile.
        """
        profile = self._planned.profile(PROFILE_PASSES)
        figures = self._turns.turn(number)
        profile = replace(profile, bandwidth=profile.bandwidth * figures[READ_B_S] / figures[READ_BEFORE_B_S])
        predictions = {
            prediction_of(residency): predict_delay(plan, profile) for residency, plan in self._plans.items()
        }
        return figures | predictions

    def _peak_turn(self, number: int) -> dict[str, float]:
        """Measures memory in processes of their own. Two run at a time, because memory does not depend on their speed.

        The first turn measures all residencies. Later turns measure only those with a claim.
        """
        planned = self._planned
        claimed = [name for name in self._partitions if number == 0 or name in (*MAX_TILES, child.AUTO)]
        residencies = [child.NOTHING, *claimed]

        def measure(residency: str) -> float:
            return measure_peak(planned.name, planned.path, residency, auto_plan(planned.packed, planned.chosen))

        with ThreadPoolExecutor(2) as threads:
            start = threads.submit(measure_start, planned.name, planned.path)
            figures = dict(zip(residencies, threads.map(measure, residencies), strict=True))
            return figures | dict(zip((START, STEADY), start.result(), strict=True))


def _is_possible(residency: str) -> bool:
    return residency != WITH_READS and (residency != child.OFFLOADED or can_offload())
