"""Vector clocks. They tell, for each host thread and stream, after which work of the others it is ordered."""

from __future__ import annotations

import itertools
import sys
from functools import cache
from pathlib import Path

Clock = dict[int, int]  # by an actor's number, the last of its epochs that is known to be over

_HERE = str(Path(__file__).parent)
_SKIPPED = (
    f"{_HERE}/",
    "/torch/",
    "/threading.py",
    "/queue.py",
    "/contextlib.py",
    "/concurrent/",
    "/weakref.py",
    "/cuda.py",
)
_FRAMES = 2
_numbers = itertools.count()


def join(into: Clock, other: Clock) -> None:
    """Merges the clock ``other`` into the clock ``into``."""
    known = into.get
    for actor, epoch in other.items():
        if known(actor, 0) < epoch:
            into[actor] = epoch


class Actor:
    """Something that does its work in order: a host thread, a stream, or a branch of a graph.

    Attributes:
        name: the name in reports.
        clock: for each actor, the last epoch that is known to be over. The actor's own entry is its current epoch. Only
            ``learn``, ``follow`` and ``step`` change it.
        num_learned: how often the clock learned of other actors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = next(_numbers)
        self.clock: Clock = {self.number: 1}
        self.num_learned = 0
        self._followed: dict[int, int] = {}  # by the number of an actor, its ``num_learned`` when it was last followed

    @property
    def epoch(self) -> int:
        """The current epoch of this actor."""
        return self.clock[self.number]

    def step(self) -> None:
        """Begins a new epoch. No other clock contains it yet."""
        self.clock[self.number] += 1

    def learn(self, clock: Clock) -> None:
        """Orders this actor after everything that a clock contains."""
        join(self.clock, clock)
        self.num_learned += 1

    def follow(self, other: Actor) -> None:
        """Orders this actor after everything that another actor has done and learned so far."""
        if self._followed.get(other.number) == other.num_learned:  # since then, only its own epochs went on
            self.clock[other.number] = other.epoch
        else:
            join(self.clock, other.clock)
            self._followed[other.number] = other.num_learned
        self.num_learned += 1


class Baton:
    """What host threads hand on, such as a lock: who takes it is ordered after all who left it.

    A thread that already knows what was left merges nothing, because locks change hands thousands of times in a test.
    """

    def __init__(self) -> None:
        # The merged clock of all who left it, and an actor and epoch whose holders know that whole clock.
        self._left: tuple[Clock, int, int] = {}, -1, 0

    def leave(self, host: Actor) -> None:
        """Notes that a thread hands on everything that is ordered before this call."""
        host.step()  # no other clock contains the new epoch yet, so who knows it later knows the clock below
        clock, number, epoch = self._left
        if host.clock.get(number, 0) >= epoch:
            self._left = dict(host.clock), host.number, host.epoch
        else:  # left by another thread without being taken meanwhile: nobody is known to know both clocks
            merged = dict(clock)
            join(merged, host.clock)
            self._left = merged, -1, 1
        host.step()

    def take(self, host: Actor) -> None:
        """Orders a thread after all that was left."""
        clock, number, epoch = self._left
        if host.clock.get(number, 0) < epoch:
            host.learn(clock)


def place_of_call() -> str:
    """Returns the innermost lines of the package or of a test that led to this call."""
    frame, found = sys._getframe(1), []
    while frame is not None and len(found) < _FRAMES:
        if name := _shown(frame.f_code.co_filename):
            found.append(f"{name}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return ", from ".join(found) or "an unknown place"


@cache
def _shown(path: str) -> str:
    """Returns the name of a file of code; empty if its lines are left out of reports."""
    return Path(path).name if path.endswith(".py") and not any(part in path for part in _SKIPPED) else ""
