"""Rivals that take turns, and time that goes where it is needed most."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from split_infer_ros.telemetry.claim import UNCLEAR, Claim
from split_infer_ros.telemetry.estimate import MIN_BLOCKS

WORTH = 10  # times as long as an assessment are the turns between two of them

Turn = Callable[[int], Mapping[str, float]]
Conclude = Callable[["Contest"], Sequence[Claim]]


@dataclass(eq=False)
class Contest:
    """Rivals at the same work, turn by turn.

    Attributes:
        name: of the work.
        turn: gives the figures of one turn, by name; its argument is the number of the turn, by which rivals begin.
        conclude: the claims that rest on this contest's figures alone.
        figures: of all turns so far, by name.
        turns: how many there were.
        spent_s: seconds that they took.
    """

    name: str
    turn: Turn
    conclude: Conclude = lambda contest: ()
    figures: dict[str, list[float]] = field(default_factory=dict)
    turns: int = 0
    spent_s: float = 0.0

    @property
    def turn_s(self) -> float:
        """Seconds a turn; NaN before the first."""
        return self.spent_s / self.turns if self.turns else math.nan

    def take(self) -> None:
        """Take one more turn."""
        begin = time.perf_counter()
        found = self.turn(self.turns)
        self.spent_s += time.perf_counter() - begin
        self.turns += 1
        for name, value in found.items():
            self.figures.setdefault(name, []).append(value)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a contest stands.

    Attributes:
        turns: taken.
        turn_s: seconds a turn; NaN before the first.
        width: of the widest interval of its claims that are unclear, in parts of the figure; of all if all are clear.
        is_clear: whether each of its claims has its verdict.
    """

    turns: int
    turn_s: float
    width: float
    is_clear: bool


def next_contest(standings: Sequence[Standing], left_s: float) -> int | None:
    """The contest that is to have the next turn; None if none can finish one in the seconds that are left.

    First each gets as many turns as a verdict needs, the one with the fewest first. Then the turn goes where the
    interval is widest: among those with an unclear claim, else among all.
    """
    able = [index for index, it in enumerate(standings) if not it.turn_s > left_s]
    if not able:
        return None
    few = [index for index in able if standings[index].turns < MIN_BLOCKS]
    if few:
        return min(few, key=lambda index: standings[index].turns)
    unclear = [index for index in able if not standings[index].is_clear]
    return max(unclear or able, key=lambda index: standings[index].width)


def take_turns(contests: Sequence[Contest], seconds: float) -> None:
    """Have contests take turns for so long. Each has at least one turn, however long that takes."""
    end = time.monotonic() + seconds
    assessors = [_Assessor(contest) for contest in contests]
    for assessor in assessors:
        assessor.take()
    while (index := next_contest([each.standing for each in assessors], end - time.monotonic())) is not None:
        assessors[index].take()


class _Assessor:
    """Takes turns of a contest, and knows how the contest stands.

    To assess a contest takes milliseconds, and more the more turns it had. A contest of short turns is assessed anew
    only after turns that took ten times as long as its last assessment.
    """

    def __init__(self, contest: Contest) -> None:
        self._contest = contest
        self._due_s = 0.0  # of the contest's time, from which it is assessed anew
        self.standing = Standing(0, math.nan, math.inf, is_clear=False)

    def take(self) -> None:
        """Take one more turn, and assess the contest if that is due."""
        contest = self._contest
        contest.take()
        if contest.turns <= MIN_BLOCKS or contest.spent_s >= self._due_s:
            begin = time.perf_counter()
            self.standing = standing(contest)
            self._due_s = contest.spent_s + WORTH * (time.perf_counter() - begin)
        else:
            self.standing = replace(self.standing, turns=contest.turns, turn_s=contest.turn_s)


def standing(contest: Contest) -> Standing:
    """How a contest stands now. A figure that is no number does not count: further turns would not mend it."""
    found = [] if contest.turns < MIN_BLOCKS else contest.conclude(contest)
    claims = [claim for claim in found if math.isfinite(claim.found.value)]
    unclear = [claim for claim in claims if claim.verdict == UNCLEAR]
    width = max((claim.found.width for claim in unclear or claims), default=0.0)
    return Standing(contest.turns, contest.turn_s, width, not unclear)


def rotated(rivals: Sequence[str], turn: int) -> list[str]:
    """Rivals in the order of that turn: none always comes right behind the same one or first."""
    order = list(rivals) if turn // len(rivals) % 2 == 0 else list(rivals)[::-1]
    first = turn % len(order)
    return order[first:] + order[:first]
