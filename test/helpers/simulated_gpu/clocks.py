"""Vector clocks. They tell, for each host thread and stream, after which work of the others it is ordered."""

from __future__ import annotations

import itertools
import sys
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
    for actor, epoch in other.items():
        if into.get(actor, 0) < epoch:
            into[actor] = epoch


class Actor:
    """Something that does its work in order: a host thread, a stream, or a branch of a graph.

    Attributes:
        name: the name in reports.
        clock: for each actor, the last epoch that is known to be over. The actor's own entry is its current epoch.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = next(_numbers)
        self.clock: Clock = {self.number: 1}

    @property
    def epoch(self) -> int:
        """The current epoch of this actor."""
        return self.clock[self.number]

    def step(self) -> None:
        """Begins a new epoch. No other clock contains it yet."""
        self.clock[self.number] += 1


def place_of_call() -> str:
    """Returns the innermost lines of the package or of a test that led to this call."""
    frame, found = sys._getframe(1), []
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        if not any(part in code.co_filename for part in _SKIPPED) and code.co_filename.endswith(".py"):
            found.append(f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return ", from ".join(found) or "an unknown place"
