"""Runs rivals in turns, and gives the next turn to the contest that needs it most."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.common.claim import Claim, Verdict
from benchmarks.common.estimate import MIN_BLOCKS

TURNS_PER_ASSESSMENT = 10  # turns between two assessments take this many times as long as an assessment

Turn = Callable[[int], Mapping[str, float]]
Conclude = Callable[["Contest"], Sequence[Claim]]


@dataclass(eq=False)
class Contest:
    """Rivals that do the same work, turn by turn.

    Attributes:
        name: the name of the work.
        turn: runs one turn and returns the figures of that turn, by name. Its argument is the number of the turn, which
            decides the order of the rivals.
        conclude: returns the claims that depend only on this contest's figures.
        figures: the figures of all turns so far, by name.
        turns: how many turns there were.
        spent_s: how many seconds the turns took.
    """

    name: str
    turn: Turn
    conclude: Conclude = lambda contest: ()
    figures: dict[str, list[float]] = field(default_factory=dict)
    turns: int = 0
    spent_s: float = 0.0

    @property
    def turn_s(self) -> float:
        """The mean seconds per turn; NaN before the first turn."""
        return self.spent_s / self.turns if self.turns else math.nan

    def take(self) -> None:
        """Runs one more turn."""
        begin = time.perf_counter()
        figures = self.turn(self.turns)
        self.spent_s += time.perf_counter() - begin
        self.turns += 1
        for name, value in figures.items():
            self.figures.setdefault(name, []).append(value)


@dataclass(frozen=True, slots=True)
class Standing:
    """How certain a contest's claims are after some turns.

    Attributes:
        turns: how many turns there were.
        turn_s: the mean seconds per turn; NaN before the first turn.
        width: the width of the widest interval among the contest's unclear claims, as a share of the figure. If no
            claim is unclear, that of the widest interval among all claims.
        is_clear: True if no claim is unclear.
    """

    turns: int
    turn_s: float
    width: float
    is_clear: bool


def next_contest(standings: Sequence[Standing], left_s: float) -> int | None:
    """Returns the index of the contest that takes the next turn.

    At first, the contest with the fewest turns takes the turn, until each has the ``MIN_BLOCKS`` turns that a verdict
    needs. After that, the contest with the widest interval takes the turn. Contests with an unclear claim go before the
    others.

    Args:
        standings: the standing of each contest.
        left_s: the seconds that are left for turns.

    Returns:
        The index, or None if no contest can finish a turn in ``left_s`` seconds.
    """
    affordable = [index for index, standing in enumerate(standings) if not standing.turn_s > left_s]
    if not affordable:
        return None
    too_few = [index for index in affordable if standings[index].turns < MIN_BLOCKS]
    if too_few:
        return min(too_few, key=lambda index: standings[index].turns)
    unclear = [index for index in affordable if not standings[index].is_clear]
    return max(unclear or affordable, key=lambda index: standings[index].width)


def take_turns(contests: Sequence[Contest], seconds: float) -> None:
    """Runs turns of the contests for about ``seconds`` seconds. Each contest has at least one turn, however long."""
    end = time.monotonic() + seconds
    assessors = [_Assessor(contest) for contest in contests]
    for assessor in assessors:
        assessor.take()
    while True:
        index = next_contest([assessor.standing for assessor in assessors], end - time.monotonic())
        if index is None:
            return
        assessors[index].take()


class _Assessor:
    """Runs turns of a contest and keeps its standing up to date.

    An assessment takes milliseconds, and more with every turn. So a contest of short turns is assessed again only after
    turns that took ten times as long as its last assessment.
    """

    def __init__(self, contest: Contest) -> None:
        self._contest = contest
        self._due_s = 0.0  # the contest is assessed again once its turns took so many seconds
        self.standing = Standing(turns=0, turn_s=math.nan, width=math.inf, is_clear=False)

    def take(self) -> None:
        """Runs one more turn, and assesses the contest if that is due."""
        contest = self._contest
        contest.take()
        if contest.turns <= MIN_BLOCKS or contest.spent_s >= self._due_s:
            begin = time.perf_counter()
            self.standing = assess(contest)
            self._due_s = contest.spent_s + TURNS_PER_ASSESSMENT * (time.perf_counter() - begin)
        else:
            self.standing = replace(self.standing, turns=contest.turns, turn_s=contest.turn_s)


def assess(contest: Contest) -> Standing:
    """Returns the contest's standing.

    Claims with a figure that is not finite are left out, because more turns would not help them.
    """
    claims = [] if contest.turns < MIN_BLOCKS else contest.conclude(contest)
    finite = [claim for claim in claims if math.isfinite(claim.found.value)]
    unclear = [claim for claim in finite if claim.verdict is Verdict.UNCLEAR]
    width = max((claim.found.width for claim in unclear or finite), default=0.0)
    return Standing(turns=contest.turns, turn_s=contest.turn_s, width=width, is_clear=not unclear)


def rotated(rivals: Sequence[str], turn: int) -> list[str]:
    """Returns the rivals in the order in which they run in a turn.

    Over the turns, every rival comes first equally often, and no rival always runs after the same other rival.
    """
    order = list(rivals) if turn // len(rivals) % 2 == 0 else list(rivals)[::-1]
    first = turn % len(order)
    return order[first:] + order[:first]
