"""Runs turns of rivals whose calls take microseconds. A turn calls each rival many times, and the rivals alternate."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping

from benchmarks.common.turns import rotated
from benchmarks.common.usage import Usage

TURN_S = 0.02

Call = Callable[[], object]


def no_wait() -> None:
    """Does nothing: a call on a CPU has ended when it returns."""


class ShortCalls:
    """Runs turns of rivals. In a turn, all rivals have the same number of passes, in alternating order.

    The first call of each rival sets up what it needs and is not counted. The next call tells how long a call takes.

    Args:
        rivals: the call of each rival.
        pass_s: about how many seconds a pass takes. A pass is calls of one rival in a row, at least one.
        turn_s: about how many seconds the passes of a turn take. Each rival has at least one pass.
        wait: called after each call. It waits for the work that the call has started, for example on a GPU.

    Attributes:
        usage: the memory and processor time of each rival, measured in its first pass of each turn.
        passes: the number of passes of each rival in a turn.
    """

    def __init__(self, rivals: Mapping[str, Call], pass_s: float, turn_s: float = TURN_S, wait: Call = no_wait) -> None:
        self._rivals = rivals
        self._wait = wait
        self.usage = Usage()
        taken = {name: self._first(call, turn_s) for name, call in rivals.items()}
        self._calls = {name: max(1, math.ceil(pass_s / seconds)) for name, seconds in taken.items()}
        self.passes = max(1, round(turn_s / sum(self._calls[name] * taken[name] for name in rivals)))

    def __call__(self, number: int) -> dict[str, float]:
        """Runs a turn. Returns the seconds that a call of each rival takes: the median of its passes."""
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
        return taken if taken > turn_s else self._seconds(call, 1)  # one call is enough if it is long

    def _seconds(self, call: Call, times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            call()
            self._wait()
        return time.perf_counter() - begin
