"""Turns go to the contest with the widest interval, and each rival is first equally often."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common import turns as module
from benchmarks.common.claim import Claim
from benchmarks.common.estimate import MIN_BLOCKS, median
from benchmarks.common.turns import Contest, Standing, next_contest, rotated, take_turns


class Clock:
    """A clock that only turns advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def contest(clock: Clock, name: str, spread: float, turn_s: float = 1.0) -> Contest:
    chance = random.Random(name)

    def turn(number: int) -> dict[str, float]:
        clock.now += turn_s
        return {"ours": 1.0 + spread * chance.random()}

    def conclude(its: Contest) -> Sequence[Claim]:
        return [Claim(name, median(its.figures["ours"]), "x", 0.5, turn_s=its.turn_s)]

    return Contest(name, turn, conclude)


def test_the_widest_interval_gets_the_most_turns(clock: Clock) -> None:
    narrow, wide = contest(clock, "narrow", 0.01), contest(clock, "wide", 1.0)
    take_turns([narrow, wide], 100.0)  # both claims are clear from the tenth turn on
    assert narrow.turns == MIN_BLOCKS
    assert wide.turns == 100 - MIN_BLOCKS
    assert len(wide.figures["ours"]) == wide.turns


def test_assessing_takes_a_tenth_of_the_time_at_most(clock: Clock) -> None:
    short = contest(clock, "short", 1.0, turn_s=0.01)
    assessed = []

    def conclude(its: Contest) -> Sequence[Claim]:
        assessed.append(its.turns)
        clock.now += 0.5  # which is as long as fifty turns
        return [Claim("short", median(its.figures["ours"]), "x", 0.5)]

    short.conclude = conclude
    take_turns([short], 30.0)
    assert assessed[0] == MIN_BLOCKS
    assert 0.5 * len(assessed) <= 0.1 * 30.0 + 0.5
    assert all(later - earlier >= 10 * 50 for earlier, later in itertools.pairwise(assessed))
    assert assessed[-1] >= short.turns - 10 * 50 - 1


def test_a_nan_figure_gets_no_further_turns(clock: Clock) -> None:
    useful = contest(clock, "useful", 1.0)
    unknown = contest(clock, "unknown", 1.0)
    unknown.conclude = lambda its: [Claim("unknown", median([math.nan] * its.turns), "%", 5.0)]
    take_turns([unknown, useful], 60.0)
    assert (unknown.turns, useful.turns) == (MIN_BLOCKS, 60 - MIN_BLOCKS)


def test_no_turn_begins_that_would_end_too_late(clock: Clock) -> None:
    take_turns([contest(clock, "long", 1.0, turn_s=30.0), contest(clock, "short", 1.0)], 100.0)
    assert clock.now == 100.0


def test_each_contest_has_at_least_one_turn(clock: Clock) -> None:
    both = [contest(clock, "long", 1.0, turn_s=30.0), contest(clock, "short", 1.0)]
    take_turns(both, 1.0)
    assert [each.turns for each in both] == [1, 1]


@given(
    st.lists(
        st.builds(Standing, st.integers(1, 40), st.floats(0.1, 10.0), st.floats(0.0, 5.0), st.booleans()), min_size=1
    ),
    st.floats(-1.0, 20.0),
)
def test_the_next_contest_is_the_one_that_needs_it_most(standings: list[Standing], left_s: float) -> None:
    index = next_contest(standings, left_s)
    able = [it for it in standings if it.turn_s <= left_s]
    if index is None:
        assert not able
        return
    chosen = standings[index]
    assert chosen in able
    if chosen.turns >= MIN_BLOCKS:  # then all have what a verdict needs
        assert all(it.turns >= MIN_BLOCKS for it in able)
        rivals = [it for it in able if not it.is_clear] or able
        assert chosen.width == max(it.width for it in rivals)


def test_a_contest_without_turns_can_be_next() -> None:
    assert next_contest([Standing(0, math.nan, math.inf, is_clear=False)], 1.0) == 0


def test_rivals_take_the_first_place_in_turns() -> None:
    firsts = Counter(rotated(["a", "b", "c"], turn)[0] for turn in range(30))
    assert set(firsts.values()) == {10}
    behind = {pair for turn in range(30) for pair in itertools.pairwise(rotated("abc", turn))}
    assert len(behind) == 6  # each rival comes right behind each other one
