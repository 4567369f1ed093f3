"""The graph tuner (paper 004, §3.2.3): the best convolutions for each segment, weighed against changes of layout."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from split_infer_ros.autotuning.spaces import CONVERSION, SEGMENTS, SEGMENTS_PARTS, WORK
from split_infer_ros.autotuning.trial_process import TrialRunner, had_too_little_time
from split_infer_ros.engines.execution_config import Compiler, Convolutions
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, same
from split_infer_ros.search.dynamic_programming import best_chain
from split_infer_ros.split.model import SplitModel

MIN_PIECE_S = 1.0  # of a piece with one kind of convolutions; oneDNN may compile that long

SegmentTimes = dict[str, list[float]]  # seconds of the segments in order, by part


@dataclass(frozen=True, slots=True)
class GraphTuner:
    """Finds the best kind of convolutions for each segment. Its measurements are stored and not repeated.

    Uncertain times count like others, because the configuration they lead to is measured as a whole before it is used.

    Attributes:
        model: the model, whose segments lie between neighbouring split points.
        runner: times the segments, once for each kind of convolutions.
        database: stores the records.
        key: the key of the records.
        task: the task of the records.
    """

    model: SplitModel
    runner: TrialRunner
    database: Database
    key: Key
    task: Mapping[str, Any]

    def best(
        self,
        kinds: Sequence[str],
        config: Mapping[str, Any],
        about: Mapping[str, Any],
        end: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> dict[str, Any] | None:
        """Returns the configuration whose segments add up to the least time; None if all segments have one kind.

        Args:
            kinds: kinds of convolutions, the most promising first. Those whose turn comes too late are left out.
            config: the network's configuration, for all that segments do not choose. They are not compiled.
            about: the batch size.
            end: when the clock stops the measurements. No piece has less time than compiling may take.
            clock: returns seconds.
        """
        plain = {**config, "compiler": Compiler.NONE.value, "folding": True}
        ends = [split_point.name for split_point in self.model.split_points[1:]]
        times: dict[str, SegmentTimes] = {}
        each_s = max((end - clock()) / len(kinds), MIN_PIECE_S * len(ends))
        for kind in kinds:
            if times and clock() >= end:
                break
            found = self._times({**plain, "convolutions": kind}, ends, about, each_s)
            if found is not None:
                times[kind] = found
        if not times:
            return None

        def conversion(index: int, before: str, after: str) -> float:
            contiguous = Convolutions.CONTIGUOUS.value
            return times[after][CONVERSION][index] if (before == contiguous) != (after == contiguous) else 0.0

        costs = [{kind: times[kind][WORK][index] for kind in times} for index in range(len(ends))]
        _, best = best_chain(costs, conversion)
        runs = [
            [kind, end]
            for index, (kind, end) in enumerate(zip(best, ends, strict=True))
            if index + 1 == len(ends) or best[index + 1] != kind
        ]
        return None if len(runs) == 1 else {**plain, "segments": runs}

    def _times(
        self, config: Mapping[str, Any], ends: Sequence[str], about: Mapping[str, Any], limit_s: float
    ) -> SegmentTimes | None:
        """Returns the medians of all segments with one kind of convolutions; None if a segment cannot run so."""
        records = self._stored(config, ends, limit_s)
        if records is None:
            records = self._measure(config, ends, about, limit_s)
            self.database.keep(records, "the segments' times are")
        if any(record.error is not None for record in records):
            return None
        times = iter([statistics.median(record.costs) for record in records])
        return {part: [next(times) for _ in ends] for part in SEGMENTS_PARTS}

    def _stored(self, config: Mapping[str, Any], ends: Sequence[str], limit_s: float) -> list[Record] | None:
        """Returns the stored records in order; None if any is missing or had too little time."""
        records = self.database.find(self.key, self.task)
        found = []
        for part in SEGMENTS_PARTS:
            for end in ends:
                wanted = {**config, "part": part, "segment": end}
                latest = next((record for record in reversed(records) if same(record.config, wanted)), None)
                if latest is None or not (latest.costs or latest.error) or had_too_little_time(latest, limit_s):
                    return None
                found.append(latest)
        return found

    def _measure(
        self, config: Mapping[str, Any], ends: Sequence[str], about: Mapping[str, Any], limit_s: float
    ) -> list[Record]:
        outcome = self.runner.run(SEGMENTS, config, about, limit_s)
        parts = outcome.facts
        if outcome.error is not None:
            parts = dict.fromkeys(SEGMENTS_PARTS, [{"costs": [], **outcome.facts}] * len(ends))
        now = time.time()
        return [
            self.key.record(
                self.task,
                {**config, "part": part, "segment": end},
                tuple(costs),
                time=now,
                error=outcome.error,
                facts=facts,
            )
            for part in SEGMENTS_PARTS
            for end, found in zip(ends, parts[part], strict=True)
            for costs, facts in [_costs_and_facts(found)]
        ]


def _costs_and_facts(found: Mapping[str, Any]) -> tuple[Sequence[float], dict[str, Any]]:
    """Separates the costs of an answer from its other facts. Facts that are False are left out."""
    return found["costs"], {name: value for name, value in found.items() if name != "costs" and value is not False}
