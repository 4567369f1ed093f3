"""Measures how long a device takes for pieces of work that follow each other."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TypeVar

from split_infer_ros.runtime.device import Device

MIN_CYCLES = 2_000_000  # about a millisecond on a GPU
MAX_CYCLES = 128_000_000
CYCLES_FACTOR = 4  # makes the spin longer if the launches were not ahead of the GPU

Result = TypeVar("Result")
Lap = Callable[[], None]
Work = Callable[[Lap], Result]


def do_nothing() -> None:
    """Does nothing. It is the default for what is called before timed work."""


class Stopwatch:
    """Measures laps: how long the device takes for each piece of some work.

    An idle GPU starts a kernel as soon as Python has launched it. Small pieces would then appear to take as long as
    their launches. Therefore the GPU first runs a kernel that only spins, while Python launches all of the work. If the
    GPU still runs out of launches, the work is repeated behind the same spin, and then behind longer spins. On a CPU,
    the clock is read after each piece.

    Args:
        device: the device on which the work runs.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._cycles = MIN_CYCLES
        self._max_cycles = MAX_CYCLES

    def laps(self, work: Work[Result], before: Callable[[], object] = do_nothing) -> tuple[Result, list[float]]:
        """Runs work on the current stream, and returns its result and the seconds of each of its laps.

        Args:
            work: the work. Its argument is a function that it calls after each piece. On a GPU, ``work`` may be called
                several times.
            before: called before each run of the work, and not timed. It must not leave work on the stream.
        """
        if self._device.type != "cuda":
            before()
            return _laps_on_cpu(work)
        for attempt in itertools.count():
            if attempt > 1:  # the first run may only have been slow because it loaded kernels, so it does not count
                self._cycles *= CYCLES_FACTOR
            before()
            result, seconds, launches_were_ahead = self._behind_a_spin(work)
            if launches_were_ahead:
                break
            if self._cycles >= self._max_cycles:  # launches of work that itself waits for the GPU are never ahead
                self._cycles = self._max_cycles = MIN_CYCLES
                break
        return result, seconds

    def time(self, work: Callable[[], object], before: Callable[[], object] = do_nothing) -> float:
        """Returns the seconds that one piece of work takes on the device.

        Args:
            work: the work. On a GPU, it may be called several times.
            before: called before each run of the work, and not timed. It must not leave work on the stream.
        """

        def run(lap: Lap) -> None:
            work()
            lap()

        _, (seconds,) = self.laps(run, before)
        return seconds

    def _behind_a_spin(self, work: Work[Result]) -> tuple[Result, list[float], bool]:
        import torch  # only here, because a process without a GPU may lack torch

        stream = torch.cuda.current_stream(self._device)
        events: list[torch.cuda.Event] = []
        starved = False

        def record() -> None:
            events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            events[-1].record(stream)

        def lap() -> None:
            nonlocal starved
            # True if the GPU reached the start of this piece before all of the piece was launched
            starved |= events[-1].query()  # type: ignore[no-untyped-call]
            record()

        stream.synchronize()
        with torch.cuda.device(self._device):
            torch.cuda._sleep(self._cycles)  # type: ignore[no-untyped-call]
        record()
        result = work(lap)
        stream.synchronize()
        seconds = [begin.elapsed_time(end) / 1e3 for begin, end in itertools.pairwise(events)]
        return result, seconds, not starved


def _laps_on_cpu(work: Work[Result]) -> tuple[Result, list[float]]:
    times = [time.perf_counter()]
    result = work(lambda: times.append(time.perf_counter()))
    return result, [end - begin for begin, end in itertools.pairwise(times)]
