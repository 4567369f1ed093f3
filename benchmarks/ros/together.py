"""Watches the detections of several cameras at the same time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.ros.observer import ANSWER_S, MIN_ARRIVALS, POLL_S, QUIET_S, Arrivals

LONGER = 1.5  # quiet lasts so many times as long as the oldest result was on its way


@dataclass(frozen=True, slots=True)
class Watched:
    """What arrived while several cameras were watched.

    Attributes:
        seconds: for how long they were watched.
        ages: the ages of each camera's detections in seconds, from the image's stamp to the arrival.
    """

    seconds: float
    ages: Sequence[Sequence[float]]

    @property
    def all_ages(self) -> list[float]:
        """The ages of all cameras' detections, in seconds."""
        return [age for ages in self.ages for age in ages]

    @property
    def frames_hz(self) -> float:
        """How many detections of all cameras arrived per second."""
        return len(self.all_ages) / self.seconds


class Together:
    """Watches several cameras. Its methods are those of ``Arrivals``, for all of them at once.

    Args:
        arrivals: the arrivals of each camera.
    """

    def __init__(self, arrivals: Sequence[Arrivals]) -> None:
        self._arrivals = arrivals

    def settle(self, seconds: float) -> None:
        """Waits for ``seconds`` seconds, and then for a new arrival of each camera that had none.

        Raises:
            RuntimeError: nothing of a camera arrives within ``ANSWER_S`` seconds.
        """
        counts = [each.count for each in self._arrivals]
        time.sleep(seconds)
        for each, count in zip(self._arrivals, counts, strict=True):
            each.wait_for(count + 1)

    def during(self, seconds: float) -> Watched:
        """Returns what arrives in the next ``seconds`` seconds.

        If fewer than ``MIN_ARRIVALS`` come from all cameras, it waits longer.

        Raises:
            RuntimeError: fewer than ``MIN_ARRIVALS`` have come after ``ANSWER_S`` more seconds.
        """
        begin, counts = time.monotonic(), [each.count for each in self._arrivals]
        enough = sum(counts) + MIN_ARRIVALS
        time.sleep(seconds)
        while self._count() < enough:
            if time.monotonic() > begin + seconds + ANSWER_S:
                raise RuntimeError(f"Hardly anything of the {len(self._arrivals)} cameras is published.")
            time.sleep(POLL_S)
        end = time.monotonic()
        ages = [
            [age for at, age in each.since(count) if at < end]
            for each, count in zip(self._arrivals, counts, strict=True)
        ]
        return Watched(end - begin, ages)

    def wait_for_quiet(self, oldest_s: float = 0.0) -> None:
        """Waits until nothing arrives any more. The next rival then has the machine for itself.

        Args:
            oldest_s: the age of the oldest result so far, in seconds. Results of many processes that share the cores
                can come long after each other.
        """
        quiet_s = max(QUIET_S, LONGER * oldest_s)
        count, since = self._count(), time.monotonic()
        while time.monotonic() < since + quiet_s:
            time.sleep(POLL_S)
            if self._count() != count:
                count, since = self._count(), time.monotonic()

    def _count(self) -> int:
        return sum(each.count for each in self._arrivals)
