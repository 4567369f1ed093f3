"""Times a network with each engine, and with micro-batches: first each configuration alone, then all in turns.

A machine that other programs use as well may be a tenth slower a second later. So if two configurations are close,
times that were measured one after the other do not tell which one is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from split_infer_ros.autotuning.spaces import RIVAL, RIVALS, TURNS
from split_infer_ros.autotuning.trial_process import MIN_TRIAL_S, TrialOutcome, TrialRunner, is_cut_short
from split_infer_ros.engines.engine import Engine
from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.space import Config, Space, Value

TURNS_S = 4.0  # the time that is kept for the turns
TURNS_SHARE = 0.5  # the engines' share of the time for turns, if micro-batches are compared after them
# If time is short, only the first of these engines are compared. OpenVINO makes a large model ready sooner than ONNX
# Runtime (VGG-16: 4 s and 11 s), and is more often the faster one. torch is rarely the fastest.
ENGINE_ORDER = (Engine.OPENVINO.value, Engine.ONNXRUNTIME.value, Engine.TORCH.value)


@dataclass(frozen=True, slots=True)
class EngineContest:
    """Compares configurations of one network at one batch size.

    ``compare`` compares engines and micro-batches. ``records`` compares any configurations.

    Attributes:
        runner: runs the trials.
        key: the machine and versions for which the records hold.
        task: the task in the records: running the whole network on a batch.
        about: what ``TrialRunner.run`` needs to know besides the configuration: ``batch_size``.
        traits: the model features. Each record repeats them.
        clock: returns the time in seconds.
    """

    runner: TrialRunner
    key: Key
    task: Mapping[str, Any]
    about: Mapping[str, Any]
    traits: Mapping[str, float]
    clock: Callable[[], float]

    def compare(self, space: Space, database: Database, end: float) -> list[Record]:
        """Compares the engines of a space, then the micro-batches of the fastest one; see ``Tuner.compare_engines``.

        Args:
            space: the space of the network's configurations.
            database: keeps the records.
            end: when the trials end, as a time of ``clock``.
        """
        engines = sorted(map(str, space.knobs["engine"]), key=lambda engine: (*ENGINE_ORDER, engine).index(engine))
        configs = {engine: {**space.default, "engine": engine} for engine in engines}
        sizes = space.knobs["micro_batch"]
        records = self.records(configs, end, TURNS_SHARE if len(sizes) > 1 else 1.0)
        database.keep(records, "the comparison of engines is")
        if len(sizes) > 1 and not any(map(is_cut_short, records)):
            micro_batches = self._micro_batches(sizes, best_of(records), end)
            database.keep(micro_batches, "the comparison of micro-batches is")
            records += micro_batches
        return records

    def _micro_batches(self, sizes: Sequence[Value], fastest: Record | None, end: float) -> list[Record]:
        """Returns a record for each micro-batch of the fastest engine.

        The micro-batches take turns with the whole batch. The whole batch was timed before, so its two times tell how
        the machine's speed has changed. The records' costs are corrected for this change.
        """
        if fastest is None or fastest.config["engine"] == Engine.TORCH.value:
            return []
        found = self.records({str(size): {**fastest.config, "micro_batch": size} for size in sizes}, end)
        if not found or found[0].error is not None:
            return []
        slower = found[0].median_s / fastest.median_s
        return [replace(record, costs=tuple(cost / slower for cost in record.costs)) for record in found[1:]]

    def records(self, configs: Mapping[str, Config], end: float, turns_share: float = 1.0) -> list[Record]:
        """Times configurations until the clock shows ``end``, or soon after: each one alone, then all in turns.

        Returns a record for each configuration that was tried.

        Args:
            configs: the configurations, by name. If time is short, only the first ones are tried.
            end: when the trials end, as a time of ``clock``. A trial that still runs then is stopped, and its record
                has an error, like that of a configuration that cannot run the model. No other trial follows, because
                it would need a new process.
            turns_share: the share of the time left after the single trials that the turns may take, from 0 to 1.
        """
        outcomes: dict[str, TrialOutcome] = {}
        for name in configs:
            if self.clock() < end and not any(map(is_cut_short, outcomes.values())):
                limit_s = max(MIN_TRIAL_S, end - TURNS_S - self.clock())
                outcomes[name] = self.runner.run(RIVAL, configs[name], self.about, limit_s)
        if not any(each.is_process_gone for each in outcomes.values()):
            outcomes |= self._in_turns(
                {name: each for name, each in outcomes.items() if each.error is None},
                configs,
                turns_share * (end - self.clock()),
            )
        return [
            outcome.as_record(self.key, self.task, configs[name], traits=self.traits)
            for name, outcome in outcomes.items()
        ]

    def _in_turns(
        self, outcomes: Mapping[str, TrialOutcome], configs: Mapping[str, Config], seconds: float
    ) -> Mapping[str, TrialOutcome]:
        """Returns the outcomes with costs that were measured in turns, if there is time for turns."""
        left_s = max(TURNS_S, seconds)
        # in a turn, each configuration runs once untimed and at least once timed
        if len(outcomes) < 2 or sum(2 * min(outcome.costs) for outcome in outcomes.values()) > left_s:
            return outcomes
        rivals = {name: dict(configs[name]) for name in outcomes}
        found = self.runner.run(RIVALS, {}, {**self.about, RIVALS: rivals}, 2 * left_s)  # turns end at half the limit
        turns: Mapping[str, Sequence[float]] = found.facts.get(TURNS, {})
        if turns.keys() != outcomes.keys():  # not all of them fit into memory side by side
            return outcomes
        return {name: replace(outcome, costs=tuple(turns[name])) for name, outcome in outcomes.items()}
