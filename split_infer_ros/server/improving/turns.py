"""Decides between two plans that compute live frames in turns. It has no clock: callers pass the times."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from split_infer_ros.measurements.turns import median_interval

TURN_S = 2.0  # a turn takes at least this long
MIN_BATCHES = 5  # and has at least this many batches
SKIPPED = 2  # batches at the beginning of a turn that do not count, because caches hold the other plan's weights
MIN_PAIRS, MAX_PAIRS = 6, 12  # pairs of turns; with fewer than six, a median has no interval
MIN_GAIN = 1.05  # a smaller gain does not pay for another engine
ORDER = "ABBABAAB"  # of the turns, again and again; B is the rival
CLEARLY_SLOWER = 1.3  # a rival that takes this many times as long is not tried further


@dataclass(frozen=True, slots=True)
class Verdict:
    """What turns on live frames have shown.

    Attributes:
        gain: how many times as fast the rival is as the incumbent: the median of all pairs of turns.
        low, high: the ends of the median's 95 % confidence interval.
    """

    gain: float
    low: float
    high: float

    @property
    def rival_wins(self) -> bool:
        """Whether the gain is large enough and clear."""
        return self.gain > MIN_GAIN and self.low > 1.0

    def __str__(self) -> str:
        return f"{self.gain:.2f} times as fast ({self.low:.2f} to {self.high:.2f})"


class Turns:
    """Gives an incumbent and a rival turns in the order ABBA BAAB, and compares neighbouring turns.

    A machine that gets slower or a scene that gets fuller then counts for both alike.
    """

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._skipped = 0
        self._began: float | None = None
        self._turns: list[float] = []  # the median of each finished turn

    @property
    def rival_runs(self) -> bool:
        """Whether the present turn is the rival's."""
        return _is_rivals(len(self._turns))

    def note(self, image_s: float, *, of_rival: bool, now: float) -> bool:
        """Notes a batch. Returns whether the present turn has ended with it.

        A batch of the other plan, which began before the turn, does not count.

        Args:
            image_s: the batch's seconds in the backbone, for each image.
            of_rival: whether the rival's plan computed the batch.
            now: seconds of the steady clock.
        """
        if of_rival is not self.rival_runs:
            return False
        if self._skipped < SKIPPED:
            self._skipped += 1
            return False
        self._began = now if self._began is None else self._began
        self._samples.append(image_s)
        if len(self._samples) < MIN_BATCHES or now - self._began < TURN_S:
            return False
        self._turns.append(statistics.median(self._samples))
        self._samples, self._skipped, self._began = [], 0, None
        return True

    @property
    def verdict(self) -> Verdict | None:
        """The verdict; None while more turns are needed."""
        gains = self._gains()
        if not gains:
            return None
        verdict = Verdict(statistics.median(gains), *median_interval(gains))
        if len(gains) < MIN_PAIRS:
            is_hopeless = len(gains) > 1 and max(gains) < 1 / CLEARLY_SLOWER
            return verdict if is_hopeless else None
        is_clear = verdict.rival_wins or verdict.high < MIN_GAIN
        return verdict if is_clear or len(gains) >= MAX_PAIRS else None

    def _gains(self) -> list[float]:
        """Returns for each pair of neighbouring turns how many times as fast the rival was."""
        gains = []
        for begin in range(0, len(self._turns) - 1, 2):
            first, second = self._turns[begin : begin + 2]
            gains.append(second / first if _is_rivals(begin) else first / second)
        return gains


def _is_rivals(turn: int) -> bool:
    return ORDER[turn % len(ORDER)] == "B"
