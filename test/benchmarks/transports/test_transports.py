"""What the benchmark of transports concludes."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")

from benchmarks.common.claim import Verdict
from benchmarks.common.turns import Contest
from benchmarks.transports import __main__ as transports


def contest(**figures: list[float]) -> Contest:
    found = Contest("", lambda turn: {})
    found.figures, found.turns, found.spent_s = figures, len(next(iter(figures.values()))), 10.0
    return found


def test_lost_images_make_the_claim_fail():
    figures = {"shipped": [1.0] * 20, "default": [5.0] * 20, "shipped arrived": [1.0, 2 / 3] * 10}
    sooner, arrived = transports.image_claims(contest(**figures))
    assert (sooner.found.value, sooner.verdict) == (0.2, Verdict.HOLDS)
    assert (round(arrived.found.value, 3), arrived.verdict) == (0.833, Verdict.FAILS)


def test_transports_are_compared_at_the_large_size():
    seconds = {"intra_process": 1e-4, "shared_memory": 2e-3, "network": 0.15, "plain DDS": 5e-2}
    figures = {f"{name} {transports.LARGE}": [value] * 20 for name, value in seconds.items()}
    figures[f"shared_memory {transports.SMALL}"] = [1.5e-3] * 20
    claims = transports.hop_claims(contest(**figures))
    assert [round(claim.found.value, 3) for claim in claims] == [500, 25, 1.333, 3]
    assert [claim.verdict for claim in claims] == [Verdict.HOLDS, Verdict.HOLDS, Verdict.HOLDS, Verdict.FAILS]
