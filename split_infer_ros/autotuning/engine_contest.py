"""Times a network in several configurations: first each one alone, then all of them in turns.

A machine that other programs use as well may be a tenth slower a second later. So if two configurations are close,
times that were measured one after the other do not tell which one is faster.
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

TURNS_S = 4.0  # the time that is kept for the turns


@dataclass(frozen=True, slots=True)
class EngineContest:
    """Compares configurations of one network at one batch size.

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
        if len(outcomes) < 2 or _seconds_of_turn(outcomes.values()) > left_s:
            return outcomes
        rivals = {name: dict(configs[name]) for name in outcomes}
        found = self.runner.run(RIVALS, {}, {**self.about, RIVALS: rivals}, 2 * left_s)  # turns end at half the limit
        turns: Mapping[str, Sequence[float]] = found.facts.get(TURNS, {})
        if turns.keys() != outcomes.keys():  # not all of them fit into memory side by side
            return outcomes
        return {name: replace(outcome, costs=tuple(turns[name])) for name, outcome in outcomes.items()}


def _seconds_of_turn(outcomes: Iterable[TrialOutcome]) -> float:
    """Returns how long a turn takes: each configuration runs once untimed and at least once timed."""
    return sum(2 * min(outcome.costs) for outcome in outcomes)
