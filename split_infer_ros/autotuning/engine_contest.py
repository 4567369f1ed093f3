"""Times a network in several configurations: first each alone, and then all of them in turns.

A machine that others use as well may be a tenth slower a second later. So times that were taken one after the other
do not tell which of two configurations is faster, if both are close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from split_infer_ros.autotuning.spaces import RIVAL, RIVALS, TURNS
from split_infer_ros.autotuning.trial_process import MIN_TRIAL_S, TrialOutcome, TrialRunner, is_cut_short
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.space import Config

TURNS_S = 4.0  # kept for the turns


@dataclass(frozen=True, slots=True)
class EngineContest:
    """Compares configurations of one network at one batch size.

    Attributes:
        runner: runs the trials.
        key: of the records.
        task: of running the whole network.
        about: the batch size, for the trials.
        traits: of the model, which each record repeats.
        clock: returns seconds.
    """

    runner: TrialRunner
    key: Key
    task: Mapping[str, Any]
    about: Mapping[str, Any]
    traits: Mapping[str, float]
    clock: Callable[[], float]

    def records(self, configs: Mapping[str, Config], end: float, turns_share: float = 1.0) -> list[Record]:
        """Returns a record for each configuration that was tried until the clock shows ``end``, or soon after.

        Args:
            configs: by name. If time is short, the first ones are compared.
            end: as said. A configuration that is being tried then has an error, as one that cannot run the model. No
                other one is tried after it, since a new process would have to start.
            turns_share: of the time that is left when all are ready, the part that their turns may take.
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
        """Returns the outcomes with the costs of turns, if there is time for them."""
        left_s = max(TURNS_S, seconds)
        if len(outcomes) < 2 or _seconds_of_turn(outcomes.values()) > left_s:
            return outcomes
        rivals = {name: dict(configs[name]) for name in outcomes}
        found = self.runner.run(RIVALS, {}, {**self.about, RIVALS: rivals}, 2 * left_s)  # it ends at half the limit
        turns: Mapping[str, Sequence[float]] = found.facts.get(TURNS, {})
        if turns.keys() != outcomes.keys():  # they would not fit into memory side by side
            return outcomes
        return {name: replace(outcome, costs=tuple(turns[name])) for name, outcome in outcomes.items()}


def _seconds_of_turn(outcomes: Iterable[TrialOutcome]) -> float:
    """Returns how long a turn takes, in which each runs once untimed and at least once more."""
    return sum(2 * min(outcome.costs) for outcome in outcomes)
