"""Times a network by each engine, untuned: first each alone, and then all of them in turns.

A machine that others use as well may be a tenth slower a second later. So times that were taken one after the other
do not tell which of two engines is faster, if both are close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from split_infer_ros.autotuning.spaces import RIVAL, RIVALS, TURNS
from split_infer_ros.autotuning.trial_process import MIN_TRIAL_S, TrialOutcome, TrialRunner
from split_infer_ros.engines.engine import Engine
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.space import Config

TURNS_S = 4.0  # kept for the turns
# If time is short, the engines that come first are the ones that are compared. OpenVINO makes a large model ready
# sooner than ONNX Runtime does (VGG-16: 4 s and 11 s), and is more often the faster one.
ORDER = (Engine.TORCH.value, Engine.OPENVINO.value, Engine.ONNXRUNTIME.value)


@dataclass(frozen=True, slots=True)
class EngineContest:
    """Compares engines for one network at one batch size, and stores a record of each.

    Attributes:
        runner: runs the trials.
        database: stores the records.
        key: of the records.
        task: of running the whole network.
        about: the batch size, for the trials.
        traits: of the model, which each record repeats.
        clock: returns seconds.
    """

    runner: TrialRunner
    database: Database
    key: Key
    task: Mapping[str, Any]
    about: Mapping[str, Any]
    traits: Mapping[str, float]
    clock: Callable[[], float]

    def records(self, configs: Mapping[str, Config], end: float) -> list[Record]:
        """Returns a record for each engine that was tried until the clock shows ``end``, or soon after.

        Args:
            configs: the network's configurations, by engine.
            end: as said. An engine that is being tried then has an error, as one that cannot run the model. No other
                one is tried after it, since a new process would have to start.
        """
        outcomes: dict[str, TrialOutcome] = {}
        for engine in sorted(configs, key=lambda engine: (*ORDER, engine).index(engine)):
            if self.clock() < end and not any(map(_is_cut_short, outcomes.values())):
                limit_s = max(MIN_TRIAL_S, end - TURNS_S - self.clock())
                outcomes[engine] = self.runner.run(RIVAL, configs[engine], self.about, limit_s)
        if not any(each.is_process_gone for each in outcomes.values()):
            outcomes |= self._in_turns(
                {name: each for name, each in outcomes.items() if each.error is None}, configs, end
            )
        records = [
            outcome.as_record(self.key, self.task, configs[engine], traits=self.traits)
            for engine, outcome in outcomes.items()
        ]
        self.database.keep(records, "the comparison of engines is")
        return records

    def _in_turns(
        self, outcomes: Mapping[str, TrialOutcome], configs: Mapping[str, Config], end: float
    ) -> Mapping[str, TrialOutcome]:
        """Returns the outcomes with the costs of turns, if there is time for them."""
        left_s = max(TURNS_S, end - self.clock())
        if len(outcomes) < 2 or _seconds_of_turn(outcomes.values()) > left_s:
            return outcomes
        rivals = {engine: dict(configs[engine]) for engine in outcomes}
        found = self.runner.run(RIVALS, {}, {**self.about, RIVALS: rivals}, 2 * left_s)  # it ends at half the limit
        turns: Mapping[str, Sequence[float]] = found.facts.get(TURNS, {})
        if turns.keys() != outcomes.keys():  # they would not fit into memory side by side
            return outcomes
        return {engine: replace(outcome, costs=tuple(turns[engine])) for engine, outcome in outcomes.items()}


def _is_cut_short(outcome: TrialOutcome) -> bool:
    return "limit_s" in outcome.facts


def _seconds_of_turn(outcomes: Iterable[TrialOutcome]) -> float:
    """Returns how long a turn takes, in which each runs once untimed and at least once more."""
    return sum(2 * min(outcome.costs) for outcome in outcomes)
