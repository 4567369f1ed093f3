"""Finds out what executions cost, one at a time, so that others may be served in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from split_infer_ros.tenancy.cost_book import CostBook
from split_infer_ros.tenancy.costs import Group
from split_infer_ros.tenancy.engine import Engine
from split_infer_ros.tenancy.measure import sample

ROUNDS = 3  # samples of each execution


@dataclass(slots=True, eq=False)
class Measurement:
    """One combination that is being measured.

    Attributes:
        steps: each is an execution.
        samples_s: seconds, so far.
        failure: why there will be no more.
    """

    combination: Group
    steps: Iterator[None]
    samples_s: list[float] = field(default_factory=list)
    failure: Exception | None = None


class Measuring:
    """What is to be measured of the models that are open, and what is under way; ``step`` alone needs no lock.

    Args:
        engine: that executes; where it records, what is known from earlier days is rehearsed, that it be recorded.
        book: that says what is missing, and keeps what was found.
    """

    def __init__(self, engine: Engine, book: CostBook) -> None:
        self._engine = engine
        self._book = book
        self._current: Measurement | None = None
        self._rehearsed: set[Group] = set()
        self.done = True

    def begin_anew(self) -> None:
        """Models came or went, or other batches are of interest."""
        self._current = None
        self._rehearsed = {found for found in self._rehearsed if all(name in self._book.models for name, _ in found)}
        self.done = False

    def pick(self) -> Measurement | None:
        """What the next step is of; None if all is done."""
        if self._current is None and not self.done:
            rounds, combination = ROUNDS, self._book.to_measure()
            if combination is None and self._engine.records:
                rounds, combination = 0, next((found for found in self._known() if found not in self._rehearsed), None)
            if combination is None:
                self.done = True
                return None
            self._rehearsed.add(combination)
            samples: list[float] = []
            steps = sample(self._book.models, self._engine, combination, rounds, samples.append)
            self._current = Measurement(combination, steps, samples)
        return self._current

    def step(self, measurement: Measurement) -> bool:
        """Execute it once more; True if that is enough."""
        try:
            return next(measurement.steps, self) is self
        except Exception as error:
            measurement.failure = error
            return True

    def conclude(self, measurement: Measurement) -> bool:
        """Keep what was found; False if the models are others now, and it does not count."""
        if measurement is not self._current:
            return False
        self._current = None
        if measurement.failure is not None:
            self._book.note_failed(measurement.combination)
        elif measurement.samples_s:
            self._book.note(measurement.combination, measurement.samples_s)
        return True

    def _known(self) -> Iterator[Group]:
        costs = self._book.costs()
        for name, sizes in costs.alone_s.items():
            for size in sizes:
                yield ((name, size),)
        yield from costs.fused_s
