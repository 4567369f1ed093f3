"""The graph tuner (§3.2.3): of each segment of a network the best form, weighed against changes of layout."""

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

PIECE_S = 1.0  # of a piece in one form, which oneDNN may take so long to compile: less is never given

Times = dict[str, list[float]]  # of the segments in order, seconds, by part


@dataclass(frozen=True, slots=True)
class GraphTuner:
    """Finds the form of each segment; what it measures is kept, and not measured again.

    Uncertain times count like others: what comes of them is measured as a whole before it is taken.

    Attributes:
        model: whose segments lie between neighbouring split points.
        runner: where they are timed, once for each kind of convolutions.
        database, key, task: of the records.
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
        """The configuration whose segments add up to the least; None where they are all alike.

        Args:
            kinds: of convolutions, the most promising first: those whose turn comes too late are left out.
            config: of the network, for what is not the segments' own; a compiler has none.
            about: the batch size.
            end: of all of it; no piece has less time than compiling may take.
            clock: seconds.
        """
        plain = {**config, "compiler": Compiler.NONE.value, "folding": True}
        ends = [split_point.name for split_point in self.model.split_points[1:]]
        times: dict[str, Times] = {}
        each_s = max((end - clock()) / len(kinds), PIECE_S * len(ends))
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
    ) -> Times | None:
        """The medians of all segments in one form; None if that cannot be had."""
        known = self._known(config, ends, limit_s)
        if known is None:
            known = self._measure(config, ends, about, limit_s)
            self.database.keep(known, "the segments' times are")
        if any(record.error is not None for record in known):
            return None
        times = iter([statistics.median(record.costs) for record in known])
        return {part: [next(times) for _ in ends] for part in SEGMENTS_PARTS}

    def _known(self, config: Mapping[str, Any], ends: Sequence[str], limit_s: float) -> list[Record] | None:
        """What the database has of them, in order; None where anything is missing, or had too little time."""
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
        now, place = time.time(), (self.key.target, self.key.versions_for(self.task), self.task)
        return [
            Record(*place, {**config, "part": part, "segment": end}, tuple(costs), outcome.error, now, facts=facts)
            for part in SEGMENTS_PARTS
            for end, found in zip(ends, parts[part], strict=True)
            for costs, facts in [_told(found)]
        ]


def _told(found: Mapping[str, Any]) -> tuple[Sequence[float], dict[str, Any]]:
    """The costs, and what else is to be said."""
    return found["costs"], {name: value for name, value in found.items() if name != "costs" and value is not False}
