"""Decides between two plans that compute live frames in turns. It has no clock: callers pass the times."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from split_infer_ros.measurements.turns import median_interval
from split_infer_ros.server.improving.measures import MIN_ENGINE_GAIN, MIN_PAIRS, BatchSample, Measure, Turn

TURN_S = 2.0  # a turn takes at least this long
MIN_BATCHES = 5  # and has at least this many batches
SKIPPED = 2  # batches at the beginning of a turn that do not count, because caches hold the other plan's weights
MAX_PAIRS = 12  # pairs of turns, at most; see ``MIN_PAIRS``
ORDER = "ABBABAAB"  # of the turns, again and again; B is the rival
CLEARLY_SLOWER = 1.3  # a rival that takes this many times as long is not tried further


@dataclass(frozen=True, slots=True)
class Verdict:
    """What turns on live frames have shown.

    Attributes:
        gain: how many times as good the rival is as the incumbent: the median of all pairs of turns.
        low, high: the ends of the median's 95 % confidence interval.
        min_gain: the gain from which on the rival pays.
        meaning: what the gain says of the rival.
    """

    gain: float
    low: float
    high: float
    min_gain: float = MIN_ENGINE_GAIN
    meaning: str = "as fast"

    @property
    def rival_wins(self) -> bool:
        """Whether the gain is large enough and clear."""
        return self.gain > self.min_gain and self.low > 1.0

    def __str__(self) -> str:
        interval = f" ({self.low:.2f} to {self.high:.2f})" if self.low else ""  # few pairs have none
        return f"{self.gain:.2f} times {self.meaning}{interval}"


class Turns:
    """Gives an incumbent and a rival turns in the order ABBA BAAB, and compares neighbouring turns.

    A machine that gets slower or a scene that gets fuller then counts for both alike.

    Args:
        measure: says how many times as good the rival was in a pair of turns.
    """

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._samples: list[BatchSample] = []
        self._skipped = 0
        self._other_out = -math.inf  # when the last batch of the plan of the turn before was out
        self._turns: list[Turn] = []  # the finished ones

    @property
    def rival_runs(self) -> bool:
        """Whether the present turn is the rival's."""
        return _is_rivals(len(self._turns))

    def note(self, batch: BatchSample, *, of_rival: bool) -> bool:
        """Notes a batch. Returns whether the present turn has ended with it.

        A batch of the other plan, which began before the turn, does not count. Nor does one that was closed before the
        last of those was out: it waited for them, and comes in a burst with others.

        Args:
            batch: what the batch has shown.
            of_rival: whether the rival's plan computed the batch.
        """
        if of_rival is not self.rival_runs:
            self._other_out = batch.delivered
            return False
        if batch.closed < self._other_out:
            return False
        if self._skipped < SKIPPED:
            self._skipped += 1
            return False
        self._samples.append(batch)
        if len(self._samples) < MIN_BATCHES or batch.delivered - self._samples[0].delivered < TURN_S:
            return False
        self._turns.append(self._samples)
        self._samples, self._skipped = [], 0
        return True

    @property
    def verdict(self) -> Verdict | None:
        """The verdict; None while more turns are needed."""
        gains = self._gains()
        if not gains:
            return None
        measure = self._measure
        verdict = Verdict(statistics.median(gains), *median_interval(gains), measure.min_gain, measure.meaning)
        if len(gains) < MIN_PAIRS:
            is_hopeless = len(gains) > 1 and max(gains) < 1 / CLEARLY_SLOWER
            return verdict if is_hopeless else None
        is_clear = verdict.rival_wins or verdict.high < verdict.min_gain
        return verdict if is_clear or len(gains) >= MAX_PAIRS else None

    def _gains(self) -> list[float]:
        """Returns for each pair of neighbouring turns how many times as good the rival was."""
        pairs: list[tuple[Turn, Turn]] = []
        for begin in range(0, len(self._turns) - 1, 2):
            first, second = self._turns[begin : begin + 2]
            pairs.append((second, first) if _is_rivals(begin) else (first, second))
        return self._measure.gains(pairs) if pairs else []


def _is_rivals(turn: int) -> bool:
    return ORDER[turn % len(ORDER)] == "B"
