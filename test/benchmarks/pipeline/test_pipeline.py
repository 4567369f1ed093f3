"""What the benchmark of the pipeline concludes."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("rclpy")

from benchmarks.common.claim import Verdict
from benchmarks.common.turns import Contest
from benchmarks.pipeline import __main__ as pipeline


def contest(**figures: list[float]) -> Contest:
    found = Contest("", lambda turn: {})
    found.figures, found.turns, found.spent_s = figures, len(next(iter(figures.values()))), 10.0
    return found


def test_frames_of_the_same_turn_are_compared():
    naive = [20.0, 40.0] * 10
    claim = pipeline.throughput_claims(contest(pipeline=[3.5 * rate for rate in naive], naive=naive))[0]
    assert (claim.found.value, claim.verdict, claim.turn_s) == (3.5, Verdict.HOLDS, 0.5)


def test_hop_and_latency_are_compared_with_dds_and_naive():
    small, large = (f"{pipeline.DDS} {size}" for size in (pipeline.SMALL, pipeline.LARGE))
    seconds = {"pipeline": 0.03, "naive": 0.05, "hop": 1e-4, small: 8e-4, large: 2e-3}
    claims = pipeline.latency_claims(contest(**{name: [value] * 20 for name, value in seconds.items()}))
    assert [round(claim.found.value, 6) for claim in claims] == [0.6, 8.0, 20.0]
    assert [claim.verdict for claim in claims] == [Verdict.HOLDS, Verdict.HOLDS, Verdict.FAILS]


def test_few_turns_decide_nothing():
    claim = pipeline.throughput_claims(contest(pipeline=[50.0] * 9, naive=[20.0] * 9))[0]
    assert claim.verdict == Verdict.UNCLEAR
    assert math.isfinite(claim.settles_s)
