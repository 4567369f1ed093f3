"""Measures how long the steps of a pass take, and how long they wait for weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from split_infer_ros.runtime.streams import Mark
from split_infer_ros.weight_streaming.weight_stream import WeightSupply


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of one pass.

    Attributes:
        step_s: seconds of each step without waits. A step includes all that ran since the end of the step before.
        tail_s: seconds after the last step.
        stalled_s: seconds of all waits for weights.
    """

    step_s: tuple[float, ...]
    tail_s: float
    stalled_s: float


class StepTimer:
    """Forwards the steps of a partition to its weight supply, and records their times on the host.

    Args:
        supply: supplies the weights.
        steps: number of steps.
    """

    def __init__(self, supply: WeightSupply, steps: int) -> None:
        self._supply = supply
        self._start = 0.0
        self._end_times = [0.0] * steps
        self._waits_s = [0.0] * steps

    def begin_pass(self) -> None:
        """Notes that a pass begins."""
        self._start = time.perf_counter()

    def begin_step(self, step: int) -> None:
        """Waits for a step's weights."""
        self._waits_s[step] = self._supply.begin_step(step)

    def end_step(self, step: int) -> None:
        """Notes that a step no longer needs its weights."""
        self._end_times[step] = time.perf_counter()
        self._supply.end_step(step)

    def end_pass(self) -> PassTimes:
        """Returns the times of the pass that ends now."""
        end = time.perf_counter()
        begin_times = [self._start, *self._end_times]
        intervals = zip(begin_times, self._end_times, self._waits_s, strict=False)
        step_s = tuple(step_end - step_begin - waited for step_begin, step_end, waited in intervals)
        return PassTimes(step_s=step_s, tail_s=end - begin_times[-1], stalled_s=sum(self._waits_s))


class DeviceStepTimer:
    """Forwards the steps of a partition to its weight supply. The device records the steps' times.

    While the host waits for weights, the device may still have work, and then does not wait. At the end of a pass, the
    host waits for the device.

    Args:
        supply: supplies the weights.
        mark: marks the current point in the device's work.
    """

    def __init__(self, supply: WeightSupply, mark: Callable[[], Mark]) -> None:
        self._supply = supply
        self._mark = mark
        self._start = mark()
        self._waiting: list[Mark] = []
        self._running: list[Mark] = []
        self._ended: list[Mark] = []

    def begin_pass(self) -> None:
        """Notes that a pass begins."""
        for marks in (self._waiting, self._running, self._ended):
            marks.clear()
        self._start = self._mark()

    def begin_step(self, step: int) -> None:
        """Waits for a step's weights."""
        self._waiting.append(self._mark())
        self._supply.begin_step(step)
        self._running.append(self._mark())

    def end_step(self, step: int) -> None:
        """Notes that a step no longer needs its weights."""
        self._ended.append(self._mark())
        self._supply.end_step(step)

    def end_pass(self) -> PassTimes:
        """Waits until the device has run the pass, then returns the pass's times."""
        end = self._mark()
        end.wait()
        begins = [self._start, *self._ended]
        steps = list(zip(begins, self._waiting, self._running, self._ended, strict=False))
        return PassTimes(
            step_s=tuple(
                begin.seconds_until(waiting) + running.seconds_until(ended) for begin, waiting, running, ended in steps
            ),
            tail_s=begins[-1].seconds_until(end),
            stalled_s=sum(waiting.seconds_until(running) for _, waiting, running, _ in steps),
        )
