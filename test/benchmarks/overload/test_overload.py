"""What the benchmark of overload concludes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from benchmarks.common.claim import Verdict
from benchmarks.common.turns import Contest
from benchmarks.overload import __main__ as overload


def contest(**figures: list[float]) -> Contest:
    found = Contest("", lambda turn: {})
    found.figures, found.turns, found.spent_s = figures, len(next(iter(figures.values()))), 10.0
    return found


def overloaded(growth: float, lost: int, seconds: list | None = None) -> list:
    during, after = SimpleNamespace(in_flight=5), SimpleNamespace(in_flight=lost)
    bench = SimpleNamespace(
        ages={"moderate": [[0.02] * 30] * 20, "flooded": [[0.03] * 30] * 20},
        seconds=seconds or [(float(second), 900.0 + growth * second / 20, 3.0) for second in range(20)],
        reports=[during, during, after],
    )
    return overload.claims(contest(moderate=[90.0] * 20, flooded=[100.0] * 20), bench)


def test_overload_claims_are_what_was_seen():
    claims = overloaded(growth=0.5, lost=0)
    assert [round(claim.found.value, 6) for claim in claims] == [3.0, 0.5, 0, 3.0, 1.5]
    assert {claim.verdict for claim in claims} == {Verdict.HOLDS}


def test_growing_memory_and_lost_frames_fail():
    claims = overloaded(growth=5.0, lost=2)
    assert [claim.verdict for claim in claims] == [
        Verdict.HOLDS,
        Verdict.FAILS,
        Verdict.FAILS,
        Verdict.HOLDS,
        Verdict.HOLDS,
    ]


def test_memory_that_was_given_back_is_no_error():
    assert overloaded(growth=-5.0, lost=0)[1].verdict == Verdict.HOLDS


def test_memory_that_wanders_decides_nothing():
    wandering = [(float(second), 900.0 + 3.0 * (second % 7), 3.0) for second in range(20)]
    assert overloaded(growth=0.0, lost=0, seconds=wandering)[1].verdict == Verdict.UNCLEAR
