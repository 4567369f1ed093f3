"""Measures the costs of executions, one execution at a time, so that frames can be served in between."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.costs.execution_timing import ExecutionRunner, GraphStore, samples_agree, time_execution
from split_infer_ros.server.schedule.execution_costs import Combination, ExecutionCosts
from split_infer_ros.server.schedule.graph_policy import MAX_FORESEEN, foreseen_combinations
from split_infer_ros.server.schedule.scheduler import Rules

MIN_ROUNDS = 3  # the fewest samples of an execution
MAX_ROUNDS = 9  # the most samples, if they disagree

Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class Measurement:
    """One combination that is being measured.

    Attributes:
        table: the cost table that gets the result.
        combination: the models and batch sizes that are executed.
        steps: runs one execution at each step.
        samples_s: the seconds of the executions so far.
        failure: the exception that ended the measurement; None if there was none.
        is_required: whether a failure means that the combination cannot be served. False for a combination that was
            served before and is run again only to be recorded.
    """

    table: CostTable
    combination: Combination
    steps: Iterator[None]
    samples_s: list[float] = field(default_factory=list)
    failure: Exception | None = None
    is_required: bool = True

    @property
    def has_enough_samples(self) -> bool:
        """True once there are at least ``MIN_ROUNDS`` samples that agree."""
        return len(self.samples_s) >= MIN_ROUNDS and samples_agree(self.samples_s)


class CostMeasurer:
    """Chooses which executions of the loaded models to measure, and measures them. Only ``step`` needs no lock.

    If a runner records graphs, the measurer also rehearses. It runs executions with costs from earlier days, and
    executions that the scheduler may fuse. So they are recorded before frames need them.

    Args:
        modes: the runner and the cost table of each execution mode. All tables have the same models.
        clock: returns seconds.
    """

    def __init__(self, modes: Sequence[tuple[ExecutionRunner, CostTable]], clock: Clock = time.perf_counter) -> None:
        self._modes = modes
        self._clock = clock
        self._current: Measurement | None = None
        self._rehearsed: set[Combination] = set()
        self._rules = Rules()
        self.done = True

    def restart(self, rules: Rules) -> None:
        """Starts to choose again, because models or rules changed.

        Args:
            rules: how the scheduler will combine requests.
        """
        self._current = None
        self._rules = rules
        models = self._modes[0][1].models
        self._rehearsed = {
            combination for combination in self._rehearsed if all(name in models for name, _ in combination)
        }
        self.done = False

    def next_measurement(self, is_idle: bool = False) -> Measurement | None:
        """Returns the measurement for the next step; None if there is nothing to measure.

        Args:
            is_idle: whether no frames come. A combination that ran without a graph may then be recorded.
        """
        if self._current is None and not self.done:
            self._current = self._next_missing()
            self.done = self._current is None
        if self._current is None and is_idle:
            self._current = self._next_unrecorded()
        return self._current

    def step(self, measurement: Measurement) -> bool:
        """Runs one more execution; returns True if the measurement needs no more executions."""
        try:
            next(measurement.steps)
        except StopIteration:
            return True
        except Exception as error:
            measurement.failure = error
            return True
        return measurement.has_enough_samples

    def finish(self, measurement: Measurement) -> bool:
        """Adds the result to its cost table; returns False if models changed meanwhile, so that it does not count."""
        if measurement is not self._current:
            return False
        self._current = None
        if measurement.failure is not None:
            if measurement.is_required:
                measurement.table.add_failed(measurement.combination)
        elif measurement.samples_s:
            measurement.table.add_measured(measurement.combination, measurement.samples_s)
        return True

    def _next_missing(self) -> Measurement | None:
        """Begins the next missing measurement, batches of one model first and stacks last. Then begins rehearsals."""
        missing = []
        for runner, table in self._modes:
            combination = table.next_to_measure()
            if combination is not None:
                missing.append((runner, table, combination))
        if missing:
            runner, table, combination = min(missing, key=lambda each: (each[1].is_stack(each[2]), len(each[2])))
            if runner.graphs is not None:
                self._rehearsed.add(combination)
            return self._begin(runner, table, combination, rounds=MAX_ROUNDS)
        for runner, table in self._modes:
            if runner.graphs is None:
                continue
            for combination in self._to_rehearse(runner.graphs, table):
                if combination not in self._rehearsed:
                    self._rehearsed.add(combination)
                    return self._begin(runner, table, combination, rounds=0)
        return None

    def _to_rehearse(self, graphs: GraphStore, table: CostTable) -> Iterator[Combination]:
        costs = table.costs()
        yield from _measured_combinations(costs)
        for combination in itertools.islice(foreseen_combinations(costs, self._rules), MAX_FORESEEN):
            if graphs.has_room(combination):
                yield combination

    def _next_unrecorded(self) -> Measurement | None:
        """Begins to record a combination that ran without a graph."""
        for runner, table in self._modes:
            combination = None if runner.graphs is None else runner.graphs.most_missed
            if combination is not None and all(name in table.models for name, _ in combination):
                return self._begin(runner, table, combination, rounds=0, is_required=False)
        return None

    def _begin(
        self,
        runner: ExecutionRunner,
        table: CostTable,
        combination: Combination,
        *,
        rounds: int,
        is_required: bool = True,
    ) -> Measurement:
        samples_s: list[float] = []
        steps = time_execution(
            table.models, runner, combination, rounds=rounds, add_sample=samples_s.append, clock=self._clock
        )
        return Measurement(table, combination, steps, samples_s, is_required=is_required)


def _measured_combinations(costs: ExecutionCosts) -> Iterator[Combination]:
    for name, sizes in costs.alone_s.items():
        for size in sizes:
            yield ((name, size),)
    yield from costs.fused_s
    for name, stack in costs.stacks.items():
        for size in stack.seconds:
            yield ((name, size),)
