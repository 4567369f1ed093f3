"""Turns of rivals whose calls take microseconds: a turn calls each of them many times, and they alternate within it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping

from _turns import rotated
from _usage import Usage

TURN_S = 0.02

Call = Callable[[], object]


def no_wait() -> None:
    """Nothing is left running behind a call."""


class ShortCalls:
    """A turn of rivals: each has as many passes as any other, in alternating order.

    The first call of each rival sets up what it needs and is not counted. The next one tells how long a call takes.

    Args:
        rivals: what each of them calls.
        pass_s: a pass of a rival is as many calls in a row as take this long, one at least.
        turn_s: there are as many passes as fill a turn of this length, one at least.
        wait: waits for what a call has started, as on a GPU. It is called after each call.

    Attributes:
        usage: what each rival takes, by the first of its passes in each turn.
        passes: of each rival in a turn.
    """

    def __init__(self, rivals: Mapping[str, Call], pass_s: float, turn_s: float = TURN_S, wait: Call = no_wait) -> None:
        self._rivals = rivals
        self._wait = wait
        self.usage = Usage()
        taken = {name: self._first(call, turn_s) for name, call in rivals.items()}
        self._calls = {name: max(1, math.ceil(pass_s / seconds)) for name, seconds in taken.items()}
        self.passes = max(1, round(turn_s / sum(self._calls[name] * taken[name] for name in rivals)))

    def __call__(self, number: int) -> dict[str, float]:
        """Seconds that a call of each rival takes: the median of its passes in this turn."""
        taken: dict[str, list[float]] = {name: [] for name in self._rivals}
        for index in range(self.passes):
            for name in rotated(list(self._rivals), number * self.passes + index):
                if index:
                    taken[name].append(self._pass(name))
                else:
                    with self.usage.of(name):
                        taken[name].append(self._pass(name))
        return {name: statistics.median(found) for name, found in taken.items()}

    def _pass(self, name: str) -> float:
        calls = self._calls[name]
        return self._seconds(self._rivals[name], calls) / calls

    def _first(self, call: Call, turn_s: float) -> float:
        taken = self._seconds(call, 1)
        return taken if taken > turn_s else self._seconds(call, 1)  # what is long says enough at once

    def _seconds(self, call: Call, times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            call()
            self._wait()
        return time.perf_counter() - begin
