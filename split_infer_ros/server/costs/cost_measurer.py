"""Measures the costs of executions, one execution at a time, so that frames can be served in between."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from split_infer_ros.errors import PassingError
from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.costs.kept_costs import samples_agree
from split_infer_ros.server.costs.table_model import BlankImages
from split_infer_ros.server.execution.concurrent_lanes import ConcurrentLanes
from split_infer_ros.server.execution.forked_graphs import ForkedGraphs
from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.server.schedule.execution_costs import Combination, ExecutionCosts
from split_infer_ros.server.schedule.graph_policy import MAX_FORESEEN, foreseen_combinations
from split_infer_ros.server.schedule.scheduler import Rules

MIN_ROUNDS = 3  # the fewest samples of an execution
MAX_ROUNDS = 9  # the most samples, if they disagree
WARM_UPS = 2  # executions that are not timed, because they choose kernels and pack weights

ExecutionRunner = MergeRunner | ConcurrentLanes
Clock = Callable[[], float]


@dataclass(slots=True, eq=False)
class Measurement:
    """One combination that is being measured.

    Attributes:
        mode: the execution mode, named by its number of lanes; see ``CostTable``.
        combination: the models and batch sizes that are executed.
        steps: runs one execution at each step.
        samples_s: the seconds of the executions so far.
        failure: the exception that ended the measurement; None if there was none.
        is_required: whether a failure means that the combination cannot be served. False for a combination that was
            served before and is run again only to be recorded.
    """

    mode: int
    combination: Combination
    steps: Iterator[None]
    samples_s: list[float] = field(default_factory=list)
    failure: Exception | None = None
    is_required: bool = True

    @property
    def has_enough_samples(self) -> bool:
        """True once there are at least ``MIN_ROUNDS`` samples, and they agree (``samples_agree``)."""
        return len(self.samples_s) >= MIN_ROUNDS and samples_agree(self.samples_s)


class CostMeasurer:
    """Chooses which executions of the loaded models to measure, and measures them.

    Callers of all but ``step`` and ``save`` hold the server's lock.

    The measurer also rehearses: it runs executions without timing them, so that they are ready before frames need them.
    If a runner records graphs, it rehearses executions with costs from the database, and executions that the scheduler
    may fuse. On a CPU, it rehearses batches of models for which merging pays, because an engine compiles them.

    Args:
        table: knows the models, and gets their costs.
        runners: the runner of each execution mode of the table, by number of lanes.
        clock: returns seconds.

    Attributes:
        done: whether nothing is left to measure or to rehearse.
    """

    def __init__(
        self, table: CostTable, runners: Mapping[int, ExecutionRunner], clock: Clock = time.perf_counter
    ) -> None:
        self._table = table
        self._runners = dict(runners)
        self._clock = clock
        self._current: Measurement | None = None
        self._rehearsed: set[tuple[int, Combination]] = set()  # by execution mode
        self._rules = Rules()
        self.done = True

    def restart(self, rules: Rules) -> None:
        """Begins again, because models or rules changed. A measurement that is under way is given up.

        Args:
            rules: how the scheduler will combine requests.
        """
        self._current = None
        self._rules = rules
        loaded = self._table.blank_images.keys()
        self._rehearsed = {each for each in self._rehearsed if dict(each[1]).keys() <= loaded}
        self.done = False

    def forget(self, name: str) -> None:
        """Notes that a model has another plan, whose graphs must be recorded. Call ``restart`` next."""
        self._rehearsed = {each for each in self._rehearsed if name not in dict(each[1])}

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
        """Runs one more execution. Returns True if the measurement needs no more executions.

        An exception of the execution is kept in ``measurement.failure``, and not raised.
        """
        try:
            next(measurement.steps)
        except StopIteration:
            return True
        except Exception as error:
            measurement.failure = error
            return True
        return measurement.has_enough_samples

    def finish(self, measurement: Measurement) -> bool:
        """Adds the result to the cost table. Returns False, and adds nothing, if models or rules changed meanwhile."""
        if measurement is not self._current:
            return False
        self._current = None
        if measurement.failure is not None:
            if measurement.is_required:
                is_passing = isinstance(measurement.failure, PassingError)
                self._table.add_failed(measurement.combination, measurement.mode, is_passing=is_passing)
        elif measurement.samples_s:
            self._table.add_measured(measurement.combination, measurement.samples_s, measurement.mode)
        return True

    def save(self) -> None:
        """Writes the results that were added to the database; see ``CostTable.save_costs``."""
        self._table.save_costs()

    def _next_missing(self) -> Measurement | None:
        """Begins the next missing measurement, batches of one model first and stacks last. Then begins rehearsals."""
        table = self._table
        missing = []
        for mode in self._runners:
            combination = table.next_to_measure(mode)
            if combination is not None:
                missing.append((mode, combination))
        if missing:
            mode, combination = min(missing, key=lambda each: (table.is_stack(each[1]), len(each[1])))
            self._rehearsed.add((mode, combination))
            return self._begin(mode, combination, rounds=MAX_ROUNDS)
        for mode, runner in self._runners.items():
            to_rehearse = table.merged_batches(mode) if runner.graphs is None else self._to_record(runner.graphs, mode)
            for combination in to_rehearse:
                if (mode, combination) not in self._rehearsed:
                    self._rehearsed.add((mode, combination))
                    return self._begin(mode, combination, rounds=0)
        return None

    def _to_record(self, graphs: ForkedGraphs, mode: int) -> Iterator[Combination]:
        costs = self._table.costs_in(mode)
        yield from _measured_combinations(costs)
        for combination in itertools.islice(foreseen_combinations(costs, self._rules), MAX_FORESEEN):
            if graphs.has_room(combination):
                yield combination

    def _next_unrecorded(self) -> Measurement | None:
        """Begins to record a combination that ran without a graph."""
        for mode, runner in self._runners.items():
            combination = None if runner.graphs is None else runner.graphs.most_missed
            if combination is not None and dict(combination).keys() <= self._table.blank_images.keys():
                return self._begin(mode, combination, rounds=0, is_required=False)
        return None

    def _begin(self, mode: int, combination: Combination, *, rounds: int, is_required: bool = True) -> Measurement:
        samples_s: list[float] = []
        steps = time_execution(
            self._table.blank_images,
            self._runners[mode],
            combination,
            rounds=rounds,
            add_sample=samples_s.append,
            clock=self._clock,
        )
        return Measurement(mode, combination, steps, samples_s, is_required=is_required)


def time_execution(
    blank_images: Mapping[str, BlankImages],
    runner: ExecutionRunner,
    combination: Combination,
    *,
    rounds: int,
    add_sample: Callable[[float], object],
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[None]:
    """Runs a combination ``WARM_UPS`` + ``rounds`` times on blank images, and yields after each run.

    Args:
        blank_images: functions that make the images of each model, at least of those in the combination.
        runner: runs the combination. It has loaded the models.
        combination: the models and batch sizes to run.
        rounds: how many executions are timed.
        add_sample: receives the seconds of each timed execution.
        clock: returns seconds.
    """
    inputs = {name: blank_images[name](size) for name, size in combination}
    runner.prepare(inputs)
    for number in range(WARM_UPS + rounds):
        begin = clock()
        runner.run(inputs)
        seconds = clock() - begin
        if number >= WARM_UPS:
            add_sample(seconds)
        yield


def _measured_combinations(costs: ExecutionCosts) -> Iterator[Combination]:
    for name, sizes in costs.alone_s.items():
        for size in sizes:
            yield ((name, size),)
    yield from costs.fused_s
    for name, stack in costs.stacks.items():
        for size in stack.seconds:
            yield ((name, size),)
