"""Finds out what executions cost, one at a time, so that others may be served in between."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from split_infer_ros.serving.cost_table import CostTable
from split_infer_ros.serving.execution_costs import ExecutionCosts, Group
from split_infer_ros.serving.execution_timing import Recordings, Runner, agree, sample
from split_infer_ros.serving.graph_policy import MOST_FORESEEN, foreseen
from split_infer_ros.serving.scheduler import Rules

ROUNDS = 3  # samples of each execution
MOST_ROUNDS = 9  # where they disagree

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class Measurement:
    """One combination that is being measured.

    Attributes:
        book: in which it is kept.
        steps: each is an execution.
        samples_s: seconds, so far.
        failure: why there will be no more.
        vital: whether what fails cannot be served; not where it was, and is but to be recorded.
    """

    table: CostTable
    combination: Group
    steps: Iterator[None]
    samples_s: list[float] = field(default_factory=list)
    failure: Exception | None = None
    vital: bool = True

    @property
    def is_enough(self) -> bool:
        """True once there are samples that agree."""
        return len(self.samples_s) >= ROUNDS and agree(self.samples_s)


class CostMeasurer:
    """What is to be measured of the models that are open, and what is under way; ``step`` alone needs no lock.

    Args:
        ways: what executes, and the book that says what is missing of it and keeps what was found; all books have the
            same models. Where it records, what is known from earlier days is rehearsed, that it be recorded, and so is
            what the scheduler may make one execution.
        clock: seconds.
    """

    def __init__(self, ways: Sequence[tuple[Runner, CostTable]], clock: Clock = time.perf_counter) -> None:
        self._ways = ways
        self._clock = clock
        self._current: Measurement | None = None
        self._rehearsed: set[Group] = set()
        self._rules = Rules()
        self.done = True

    def begin_anew(self, rules: Rules) -> None:
        """Models came or went, or other batches are of interest: those that these rules make."""
        self._current = None
        self._rules = rules
        _, table = self._ways[0]
        self._rehearsed = {found for found in self._rehearsed if all(name in table.models for name, _ in found)}
        self.done = False

    def pick(self, at_rest: bool = False) -> Measurement | None:
        """What the next step is of; None if all is done.

        Args:
            at_rest: nothing comes: then what ran and is not recorded may be.
        """
        if self._current is None and not self.done:
            self._current = self._next()
            self.done = self._current is None
        if self._current is None and at_rest:
            self._current = self._missed()
        return self._current

    def step(self, measurement: Measurement) -> bool:
        """Execute it once more; True if that is enough."""
        try:
            return next(measurement.steps, self) is self or measurement.is_enough
        except Exception as error:
            measurement.failure = error
            return True

    def conclude(self, measurement: Measurement) -> bool:
        """Keep what was found; False if the models are others now, and it does not count."""
        if measurement is not self._current:
            return False
        self._current = None
        if measurement.failure is not None:
            if measurement.vital:
                measurement.table.note_failed(measurement.combination)
        elif measurement.samples_s:
            measurement.table.note(measurement.combination, measurement.samples_s)
        return True

    def _next(self) -> Measurement | None:
        """What is missing, batches of one model first; then what is to be rehearsed."""
        missing = [(runner, table, found) for runner, table in self._ways if (found := table.to_measure())]
        for runner, table, combination in sorted(missing, key=lambda found: len(found[2])):
            if runner.graphs is not None:
                self._rehearsed.add(combination)
            return self._begin(runner, table, combination, MOST_ROUNDS)
        for runner, table in self._ways:
            for combination in () if runner.graphs is None else self._to_record(runner.graphs, table):
                if combination not in self._rehearsed:
                    self._rehearsed.add(combination)
                    return self._begin(runner, table, combination, 0)
        return None

    def _to_record(self, graphs: Recordings, table: CostTable) -> Iterator[Group]:
        costs = table.costs()
        yield from _known(costs)
        for combination in itertools.islice(foreseen(costs, self._rules), MOST_FORESEEN):
            if graphs.has_room(combination):
                yield combination

    def _missed(self) -> Measurement | None:
        for runner, table in self._ways:
            combination = None if runner.graphs is None else runner.graphs.wanted
            if combination is not None and all(name in table.models for name, _ in combination):
                return replace(self._begin(runner, table, combination, 0), vital=False)
        return None

    def _begin(self, runner: Runner, table: CostTable, combination: Group, rounds: int) -> Measurement:
        samples_s: list[float] = []
        steps = sample(table.models, runner, combination, rounds, samples_s.append, self._clock)
        return Measurement(table, combination, steps, samples_s)


def _known(costs: ExecutionCosts) -> Iterator[Group]:
    for name, sizes in costs.alone_s.items():
        for size in sizes:
            yield ((name, size),)
    yield from costs.fused_s
