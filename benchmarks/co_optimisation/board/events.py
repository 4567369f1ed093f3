"""A discrete-event simulation: processes hold resources for some time, one after the other.

A process is a sequence of steps. A step waits until all its resources are free, holds them for its time, and gives them
back. Waiting steps are served in the order in which they began to wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum


class Resource(Enum):
    """What only one step can hold at a time."""

    GPU = "GPU"  # runs a kernel, copies, or flushes a cache
    DRIVER = "driver"  # maps pages and flushes caches


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a process.

    Attributes:
        ms: how long the step takes once it has its resources.
        resources: what the step holds meanwhile.
        idle_ms: for how long at its beginning a gauge of the GPU's load does not count the step.
        load_ms: for how long after that the gauge counts it.
        repeats: how often the step is done. Another process's step can come in between.
    """

    ms: float
    resources: frozenset[Resource] = frozenset()
    idle_ms: float = 0.0
    load_ms: float = 0.0
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """What happened.

    Attributes:
        ends_ms: when each process ended, in ms from the start.
        load_ms: for how long the gauge counted at least one step.
    """

    ends_ms: tuple[float, ...]
    load_ms: float


def simulate(processes: Sequence[Iterable[Step]]) -> Trace:
    """Runs processes that all begin at once, and returns what happened."""
    return _Simulation(processes).run()


class _Simulation:
    def __init__(self, processes: Sequence[Iterable[Step]]) -> None:
        self._steps: list[Iterator[Step]] = [iter(steps) for steps in processes]
        self._ends_ms = [0.0] * len(processes)
        self._alive = len(processes)
        self._waiting: list[tuple[int, Step]] = []  # the longest wait first
        self._held: set[Resource] = set()
        self._running: list[tuple[float, int, int, Step, int]] = []  # end, order of starts, process, step, repeats
        self._starts = 0
        self._load: list[tuple[float, float]] = []

    def run(self) -> Trace:
        for process in range(len(self._steps)):
            self._next(process, 0.0)
        now = 0.0
        self._start(now)
        while self._running:
            now, _, process, step, left = heapq.heappop(self._running)
            self._held -= step.resources
            if left:
                self._waiting.append((process, replace(step, repeats=left)))
            else:
                self._next(process, now)
            self._start(now)
        return Trace(tuple(self._ends_ms), _union_ms(self._load))

    def _next(self, process: int, now: float) -> None:
        """Makes the process wait for its next step, or ends it."""
        step = next(self._steps[process], None)
        if step is None:
            self._ends_ms[process] = now
            self._alive -= 1
        else:
            self._waiting.append((process, step))

    def _start(self, now: float) -> None:
        """Starts the waiting steps whose resources are free. A step does not overtake one that needs the same."""
        wanted = set(self._held)
        still: list[tuple[int, Step]] = []
        for process, step in self._waiting:
            if step.resources & wanted:
                wanted |= step.resources
                still.append((process, step))
                continue
            wanted |= step.resources
            self._held |= step.resources
            at_once = step.repeats if self._alive == 1 else min(1, step.repeats)  # nothing can come in between
            if step.load_ms:
                begin = now + step.idle_ms
                self._load.append((begin, begin + at_once * step.load_ms))
            heapq.heappush(
                self._running, (now + at_once * step.ms, self._starts, process, step, step.repeats - at_once)
            )
            self._starts += 1
        self._waiting = still


def _union_ms(spans: Iterable[tuple[float, float]]) -> float:
    """Returns how much time lies in at least one of the spans."""
    total, reached = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
