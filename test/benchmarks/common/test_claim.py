"""A verdict is clear exactly if the whole interval decides it."""

import math

import pytest

from benchmarks.common.claim import Claim, Direction, Verdict, format_duration
from benchmarks.common.estimate import Estimate, exact


def found(low: float, value: float, high: float, turns: int = 20, blocks: int = 10) -> Estimate:
    return Estimate(value, low, high, turns, blocks)


@pytest.mark.parametrize(
    ("estimate", "direction", "verdict"),
    [
        (found(2.0, 2.5, 3.0), Direction.AT_LEAST, Verdict.HOLDS),
        (found(1.9, 2.5, 3.0), Direction.AT_LEAST, Verdict.UNCLEAR),
        (found(1.0, 1.5, 1.99), Direction.AT_LEAST, Verdict.FAILS),
        (found(1.0, 1.5, 2.0), Direction.AT_MOST, Verdict.HOLDS),
        (found(1.0, 1.5, 2.1), Direction.AT_MOST, Verdict.UNCLEAR),
        (found(2.1, 2.5, 3.0), Direction.AT_MOST, Verdict.FAILS),
        (found(2.5, 2.5, 2.5, turns=9, blocks=9), Direction.AT_LEAST, Verdict.UNCLEAR),
        (exact(2.0), Direction.AT_LEAST, Verdict.HOLDS),
        (exact(1.0), Direction.AT_LEAST, Verdict.FAILS),
        (exact(math.nan), Direction.AT_LEAST, Verdict.UNCLEAR),
        (exact(math.inf), Direction.AT_LEAST, Verdict.UNCLEAR),
    ],
)
def test_the_whole_interval_decides(estimate: Estimate, direction: str, verdict: str) -> None:
    assert Claim("speed", estimate, "x", 2.0, direction).verdict == verdict


def test_an_impossible_figure_is_unclear() -> None:
    assert Claim("memory", found(-9.0, -7.2, -5.0), "MB", 10.0, Direction.AT_MOST).verdict == Verdict.UNCLEAR
    assert (
        Claim("delay over resident", found(-9.0, -7.2, -5.0), "%", 10.0, Direction.AT_MOST, floor=-100).verdict
        == Verdict.HOLDS
    )


def test_settles_s_estimates_the_run_that_decides() -> None:
    # The goal lies at half of the interval's upper part: twice as narrow takes four times the turns.
    claim = Claim("speed", found(1.0, 1.5, 2.5), "x", 2.0, turn_s=3.0)
    assert claim.settles_s == 4 * 20 * 3.0
    assert claim.as_json()["settles_s"] == 240
    assert "4 min of turns would settle it" in claim.line(5)


@pytest.mark.parametrize(
    "estimate", [found(2.0, 2.5, 3.0), found(1.0, 2.0, 3.0), exact(math.nan), found(-3.0, -2.0, -1.0)]
)
def test_settles_s_is_nan_if_more_turns_do_not_help(estimate: Estimate) -> None:
    claim = Claim("speed", estimate, "x", 2.0, turn_s=3.0)
    assert math.isnan(claim.settles_s)
    assert claim.as_json()["settles_s"] is None


def test_settles_s_counts_at_least_ten_turns() -> None:
    few = Claim("speed", found(3.0, 3.5, 4.0, turns=2, blocks=2), "x", 2.0, turn_s=3.0)
    assert few.verdict == Verdict.UNCLEAR
    assert few.settles_s == 30.0


def test_nan_is_none_in_json() -> None:
    claim = Claim("speed", exact(math.nan), "x", 2.0)
    assert "not measured" in claim.line(5)
    told = claim.as_json()
    assert told["value"] is told["low"] is told["high"] is None
    assert told["verdict"] == Verdict.UNCLEAR


@pytest.mark.parametrize(("seconds", "text"), [(0.5, "0.5 s"), (59.0, "59 s"), (90.0, "1.5 min"), (7200.0, "2 h")])
def test_durations_have_the_largest_fitting_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
