"""How long a device takes for pieces of work that follow one another."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TypeVar

import torch

FIRST_CYCLES = 2_000_000  # about a millisecond on a GPU
MOST_CYCLES = 128_000_000
LONGER = 4  # times as long, if launches were not ahead

Result = TypeVar("Result")
Lap = Callable[[], None]
Work = Callable[[Lap], Result]


def do_nothing() -> None:
    """Prepares do_nothing."""


class Stopwatch:
    """Measures laps: the pieces of some work, each as long as the device takes for it.

    A GPU that has do_nothing to do starts a kernel when Python has launched it. Small pieces would then take as long as
    their launches. Therefore the GPU first runs a kernel that only spins, while Python launches all of the work. If
    the GPU still runs out of launches, the work is repeated behind the same spin, and then behind longer ones. On a CPU
    the clock is read after each piece.

    Args:
        device: where the work runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cycles, self._most_cycles = FIRST_CYCLES, MOST_CYCLES

    def laps(self, work: Work[Result], before: Callable[[], object] = do_nothing) -> tuple[Result, list[float]]:
        """Runs work on the current stream, and returns its result and the seconds of each of its laps.

        Args:
            work: is given a function to call after each piece. On a GPU it may be called several times.
            before: called before each run of the work, untimed. It may not leave work on the stream.
        """
        if self._device.type != "cuda":
            before()
            return _on_a_cpu(work)
        for attempt in itertools.count():
            if attempt > 1:  # the first run may have been slow because it loaded kernels, and the second was not
                self._cycles *= LONGER
            before()
            result, seconds, launches_were_ahead = self._behind_a_spin(work)
            if launches_were_ahead:
                break
            if self._cycles >= self._most_cycles:  # work that itself waits for the GPU is never ahead
                self._cycles = self._most_cycles = FIRST_CYCLES
                break
        return result, seconds

    def time(self, work: Callable[[], object], before: Callable[[], object] = do_nothing) -> float:
        """The seconds of one piece of work."""

        def run(lap: Lap) -> None:
            work()
            lap()

        return self.laps(run, before)[1][0]

    def _behind_a_spin(self, work: Work[Result]) -> tuple[Result, list[float], bool]:
        stream = torch.cuda.current_stream(self._device)
        marks: list[torch.cuda.Event] = []
        starved = False

        def mark() -> None:
            marks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            marks[-1].record(stream)

        def lap() -> None:
            nonlocal starved
            # True if the GPU came to the begin of this piece before all of the piece was launched
            starved |= marks[-1].query()  # type: ignore[no-untyped-call]
            mark()

        stream.synchronize()
        with torch.cuda.device(self._device):
            torch.cuda._sleep(self._cycles)  # type: ignore[no-untyped-call]
        mark()
        result = work(lap)
        stream.synchronize()
        seconds = [begin.elapsed_time(end) / 1e3 for begin, end in itertools.pairwise(marks)]
        return result, seconds, not starved


def _on_a_cpu(work: Work[Result]) -> tuple[Result, list[float]]:
    marks = [time.perf_counter()]
    result = work(lambda: marks.append(time.perf_counter()))
    return result, [end - begin for begin, end in itertools.pairwise(marks)]
