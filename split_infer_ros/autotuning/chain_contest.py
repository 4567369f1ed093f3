"""Decides whether a chain of segments is used: only if it was faster than the best uniform configuration.

A uniform configuration has the same kind of convolutions in all segments.
Sums of the segments' times do not decide. Neighbours share caches, and a time from minutes ago says little about a
machine that others use as well. So the chain and the uniform configuration run in one process, in turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from split_infer_ros.autotuning.spaces import CHAIN, UNIFORM
from split_infer_ros.autotuning.trial_process import TrialRunner
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, same
from split_infer_ros.measurements.turns import median_interval

SHARE = "share_of_uniform"  # fact of a record: the chain's share of the uniform time, median and interval


@dataclass(frozen=True, slots=True)
class ChainContest:
    """Times a chain in turns with the best uniform configuration. What the database holds is not measured again.

    Attributes:
        runner: runs the trial.
        database: stores the record.
        key: the machine and versions for which the record holds.
        task: the task of running the whole network.
    """

    runner: TrialRunner
    database: Database
    key: Key
    task: Mapping[str, Any]

    def record(self, chain: Mapping[str, Any], uniform: Record, about: Mapping[str, Any], *, limit_s: float) -> Record:
        """Returns the record of a chain. The chain is measured now unless the database holds its record.

        In each turn, the chain's time is divided by the time of the uniform configuration. If the median's interval
        includes 1, the record is marked uncertain, and so never preferred. The record's costs are these shares,
        multiplied by the recorded time of the uniform configuration. So both records compare as if the machine had not
        changed in between.

        Args:
            chain: the chain's configuration.
            uniform: the record of the best uniform configuration.
            about: what the trial needs to know: ``batch_size``.
            limit_s: the time limit of the trial, in seconds.
        """
        for known in self.database.find(self.key, self.task):
            if same(known.config, chain) and is_proven(known):
                return known
        outcome = self.runner.run(CHAIN, chain, {**about, UNIFORM: dict(uniform.config)}, limit_s)
        facts = {name: value for name, value in outcome.facts.items() if name != UNIFORM}
        costs: tuple[float, ...] = ()
        if outcome.error is None:
            shares = [one / other for one, other in zip(outcome.costs, outcome.facts[UNIFORM], strict=True)]
            low, high = median_interval(shares)
            facts |= {SHARE: [statistics.median(shares), low, high]}
            facts |= {"uncertain": True} if low <= 1.0 <= high else {}
            costs = tuple(share * uniform.median_s for share in shares)
        record = replace(outcome, costs=costs, facts=facts).as_record(self.key, self.task, chain)
        self.database.keep([record], "the trial is")
        return record


def is_proven(record: Record) -> bool:
    """Returns whether a record of the whole network may be used.

    A record of a chain may be used only if it has an error, or the result of turns with a uniform configuration.
    """
    return "segments" not in record.config or record.error is not None or SHARE in record.facts


def verdict_on(record: Record) -> str:
    """Says in a sentence whether a chain is used, and why."""
    segments = ", ".join(f"{kind} up to {end}" for kind, end in record.config["segments"])
    if record.error is not None:
        return f"The chain {segments} is not used: {record.error}"
    share, low, high = record.facts[SHARE]
    measured = f"{share:.3f} ({low:.3f} to {high:.3f}, {len(record.costs)} turns) of the best uniform form's time"
    if record.uncertain or low > 1.0:
        return f"The chain {segments} is not used: it takes {measured}."
    return f"The chain {segments} is used: it takes {measured}."
