"""The graph tuner (paper 004, §3.2.3) chooses convolutions for each segment. It weighs their times against conversions.

On the CPUs of docs/results, no chain of segments was faster than the best configuration whose segments are all alike.
So a chain is used only if it was faster as a whole; see ``chain_contest``.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from split_infer_ros.autotuning.memory_formats import MemoryFormat, format_of, needs_conversion
from split_infer_ros.autotuning.spaces import LAYOUTS, SEGMENTS, SEGMENTS_PARTS, WORK
from split_infer_ros.autotuning.trial_process import TrialRunner, had_too_little_time
from split_infer_ros.engines.execution_config import Compiler, Convolutions
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, same
from split_infer_ros.search.dynamic_programming import best_chain
from split_infer_ros.split.model import SplitModel

MIN_PIECE_S = 1.0  # the least time for a segment with one kind of convolutions; oneDNN may compile that long
LAYOUT = "layout"  # fact of a record: the memory format of a segment's results


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """The times of all segments of a network, in order, with one kind of convolutions. Uncertain times are infinite.

    Attributes:
        work: the seconds that each segment takes if its inputs have the memory format of this kind.
        conversion: the seconds of converting each segment's inputs from the other memory format to that of this kind.
        formats: the memory format of each segment's results.
    """

    work: Sequence[float]
    conversion: Sequence[float]
    formats: Sequence[MemoryFormat]


@dataclass(frozen=True, slots=True)
class Chain:
    """The result of the graph tuner.

    Attributes:
        config: the network's configuration with ``segments``; None if there is no chain to try.
        reason: a sentence that says why there is no chain to try.
    """

    config: Mapping[str, Any] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GraphTuner:
    """Finds the best kind of convolutions for each segment. Times that the database holds are not measured again.

    An uncertain time counts as unknown: the segment does not get this kind, or the conversion is avoided. With blocks
    of channels (``blocked``), the time of a segment includes converting its inputs and results. Between neighbouring
    segments of this kind nothing is converted, so the sum of their times is too large.

    Attributes:
        model: the model. Its segments lie between neighbouring split points.
        runner: times the segments, once for each kind of convolutions.
        database: stores the records.
        key: the machine and versions for which the records hold.
        task: the task in the records: timing the segments of this network.
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
    ) -> Chain:
        """Returns the chain with the least sum of the times of segments and conversions, or why there is none to try.

        Args:
            kinds: kinds of convolutions, the most promising first. If time runs out, the last kinds are left out.
            config: the network's configuration for everything but the convolutions. Segments are never compiled.
            about: what the trials need to know: ``batch_size``.
            end: when the measurements end, as a time of ``clock``. Each segment gets at least ``MIN_PIECE_S``.
            clock: returns the time in seconds.
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
            return Chain(None, "No kind of convolutions can run the segments by themselves.")
        costs = [{kind: times[kind].work[index] for kind in times} for index in range(len(ends))]
        unknown = [end for end, by_kind in zip(ends, costs, strict=True) if not math.isfinite(min(by_kind.values()))]
        if unknown:
            return Chain(
                None, f"The times of {len(unknown)} of {len(ends)} segments are uncertain, first {unknown[0]}."
            )
        total, best = best_chain(costs, lambda index, before, after: conversion_s(times, index, before, after))
        if not math.isfinite(total):
            return Chain(None, "The times of conversions between the segments are uncertain.")
        runs = [
            [kind, end]
            for index, (kind, end) in enumerate(zip(best, ends, strict=True))
            if index + 1 == len(ends) or best[index + 1] != kind
        ]
        if len(runs) == 1:
            return Chain(None, f"All segments add up to the least time with convolutions {runs[0][0]}.")
        return Chain({**plain, "segments": runs})

    def _times(
        self, config: Mapping[str, Any], ends: Sequence[str], about: Mapping[str, Any], limit_s: float
    ) -> SegmentTimes | None:
        """Returns the times of all segments with one kind of convolutions; None if a segment cannot run with it."""
        records = self._stored(config, ends, limit_s)
        if records is None:
            records = self._measure(config, ends, about, limit_s)
            self.database.keep(records, "the segments' times are")
        if any(record.error is not None for record in records):
            return None
        seconds = [math.inf if record.uncertain else statistics.median(record.costs) for record in records]
        work = records[: len(ends)]
        return SegmentTimes(
            work=seconds[: len(ends)],
            conversion=seconds[len(ends) :],
            formats=[MemoryFormat(record.facts.get(LAYOUT, MemoryFormat.MIXED.value)) for record in work],
        )

    def _stored(self, config: Mapping[str, Any], ends: Sequence[str], limit_s: float) -> list[Record] | None:
        """Returns the stored records in order; None if a record is missing or its trial had too little time."""
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
        parts = {part: outcome.facts.get(part, [{"costs": []}] * len(ends)) for part in SEGMENTS_PARTS}
        formats = outcome.facts.get(LAYOUTS, [MemoryFormat.MIXED.value] * len(ends))
        limit = {name: value for name, value in outcome.facts.items() if name == "limit_s"}
        now = time.time()
        return [
            self.key.record(
                self.task,
                {**config, "part": part, "segment": end},
                tuple(found["costs"]),
                time=now,
                error=outcome.error,
                facts=limit
                | ({"uncertain": True} if found.get("uncertain") else {})
                | ({LAYOUT: kind} if part == WORK else {}),
            )
            for part in SEGMENTS_PARTS
            for end, found, kind in zip(ends, parts[part], formats, strict=True)
        ]


def conversion_s(times: Mapping[str, SegmentTimes], index: int, before: str, after: str) -> float:
    """Returns the seconds of the conversion between two neighbouring segments; 0 if none is needed.

    Neighbours with the same kind of convolutions run as one part, without a conversion.

    Args:
        times: the times of all segments, by kind of convolutions.
        index: the index of the later segment.
        before, after: the kinds of convolutions of the earlier and of the later segment.
    """
    given, taken = times[before].formats[index - 1], format_of(Convolutions(after))
    return times[after].conversion[index] if before != after and needs_conversion(given, taken) else 0.0
