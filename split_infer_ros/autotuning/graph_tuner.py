"""The graph tuner (paper 004, §3.2.3): the best convolutions for each segment, weighed against changes of layout.

It was tried on the CPUs of docs/results. No chain of segments was faster there than the best form whose segments are
all alike. So a chain is used only if it was faster as a whole; see ``chain_contest``.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from split_infer_ros.autotuning.layouts import Layout, layout_of, needs_conversion
from split_infer_ros.autotuning.spaces import LAYOUTS, SEGMENTS, SEGMENTS_PARTS, WORK
from split_infer_ros.autotuning.trial_process import TrialRunner, had_too_little_time
from split_infer_ros.engines.execution_config import Compiler, Convolutions
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, same
from split_infer_ros.search.dynamic_programming import best_chain
from split_infer_ros.split.model import SplitModel

MIN_PIECE_S = 1.0  # of a piece with one kind of convolutions; oneDNN may compile that long
LAYOUT = "layout"  # fact of a record: that of a segment's results


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """The segments with one kind of convolutions, in order. Times that are uncertain are infinite.

    Attributes:
        work: seconds of each segment, its inputs in the layout of that kind.
        conversion: seconds of bringing each segment's inputs into that layout from the other one.
        layouts: of each segment's results.
    """

    work: Sequence[float]
    conversion: Sequence[float]
    layouts: Sequence[Layout]


@dataclass(frozen=True, slots=True)
class Chain:
    """What the graph tuner found.

    Attributes:
        config: the network's configuration with ``segments``; None if there is nothing to mix.
        reason: why there is nothing to mix, as a sentence.
    """

    config: Mapping[str, Any] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GraphTuner:
    """Finds the best kind of convolutions for each segment. Its measurements are stored and not repeated.

    A time that is uncertain counts as unknown: such a segment does not get this kind, and such a conversion is avoided.

    The time of a segment in blocks of channels includes laying out its inputs and results. Inside a run of such
    segments this does not happen, so the sum overrates the cost of the run.

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
    ) -> Chain:
        """Returns the configuration whose segments and conversions add up to the least time.

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
        """Returns the times of all segments with one kind of convolutions; None if a segment cannot run so."""
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
            layouts=[Layout(record.facts.get(LAYOUT, Layout.MIXED.value)) for record in work],
        )

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
        parts = {part: outcome.facts.get(part, [{"costs": []}] * len(ends)) for part in SEGMENTS_PARTS}
        layouts = outcome.facts.get(LAYOUTS, [Layout.MIXED.value] * len(ends))
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
                | ({LAYOUT: layout} if part == WORK else {}),
            )
            for part in SEGMENTS_PARTS
            for end, found, layout in zip(ends, parts[part], layouts, strict=True)
        ]


def conversion_s(times: Mapping[str, SegmentTimes], index: int, before: str, after: str) -> float:
    """Returns the seconds between two segments. Neighbours of one kind run as one part, so nothing is converted."""
    given, taken = times[before].layouts[index - 1], layout_of(Convolutions(after))
    return times[after].conversion[index] if before != after and needs_conversion(given, taken) else 0.0
