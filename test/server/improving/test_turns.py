"""Turns of two plans on live frames: their order, what counts, and who wins."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.server.improving.measures import MIN_ENGINE_GAIN, MIN_PAIRS, BackboneMeasure, BatchSample
from split_infer_ros.server.improving.turns import (
    CLEARLY_SLOWER,
    MAX_PAIRS,
    MIN_BATCHES,
    SKIPPED,
    TURN_S,
    Turns,
    Verdict,
)

PERIOD_S = 0.1  # between two batches


def batch(backbone_s: float, now: float) -> BatchSample:
    return BatchSample(now, num_images=1, backbone_s=backbone_s, latency_s=0.01, age_s=1.0)


class Stream:
    """Batches that come at a steady rate.

    Attributes:
        turns: what is tested.
        order: which plan had each turn so far: A is the incumbent, and B the rival.
        verdict: the verdict; None while there is none.
    """

    def __init__(self, incumbent_s: float, rival_s: float, *, noise: float = 0.0, seed: int = 0) -> None:
        self.turns = Turns(BackboneMeasure())
        self.order = ""
        self.verdict: Verdict | None = None
        self._seconds = {False: incumbent_s, True: rival_s}
        self._noise, self._random, self._now = noise, random.Random(seed), 0.0

    def take_turn(self) -> None:
        rival = self.turns.rival_runs
        self.order += "B" if rival else "A"
        has_ended = False
        while not has_ended:
            self._now += PERIOD_S
            image_s = self._seconds[rival] * self._random.lognormvariate(0.0, self._noise)
            has_ended = self.turns.note(batch(image_s, self._now), of_rival=rival)
        self.verdict = self.turns.verdict

    def run(self) -> Verdict:
        while self.verdict is None:
            self.take_turn()
        return self.verdict


def test_turns_alternate_so_that_a_drift_counts_for_both_alike() -> None:
    stream = Stream(1.0, 1.1)
    for _ in range(16):
        stream.take_turn()
    assert stream.order == "ABBABAABABBABAAB"


@pytest.mark.parametrize("drift", [0.99, 1.01])
def test_a_machine_that_changes_its_speed_steadily_makes_no_winner(drift: float) -> None:
    turns, speed, now = Turns(BackboneMeasure()), 1.0, 0.0
    while turns.verdict is None:
        has_ended = False
        while not has_ended:
            now += PERIOD_S
            has_ended = turns.note(batch(speed, now), of_rival=turns.rival_runs)
        speed *= drift
    assert not turns.verdict.rival_wins


@pytest.mark.parametrize(("rival_s", "wins"), [(0.5, True), (0.9, True), (0.97, False), (1.0, False), (1.2, False)])
def test_a_rival_wins_by_more_than_the_smallest_gain(rival_s: float, wins: bool) -> None:
    verdict = Stream(1.0, rival_s).run()
    assert verdict.gain == pytest.approx(1 / rival_s)
    assert verdict.rival_wins is wins
    assert verdict.low <= verdict.gain <= verdict.high


def test_a_clearly_slower_rival_gets_two_turns() -> None:
    stream = Stream(1.0, 1.01 * CLEARLY_SLOWER)
    verdict = stream.run()
    assert not verdict.rival_wins
    assert stream.order == "ABBA"
    assert str(verdict) == "0.76 times as fast", "two pairs have no interval"


@given(rival_s=st.floats(0.3, 3.0), noise=st.floats(0.0, 0.5), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_contest_ends(rival_s: float, noise: float, seed: int) -> None:
    stream = Stream(1.0, rival_s, noise=noise, seed=seed)
    verdict = stream.run()
    pairs = len(stream.order) // 2
    assert MIN_PAIRS <= pairs <= MAX_PAIRS or (pairs >= 2 and not verdict.rival_wins)
    assert verdict.rival_wins is (verdict.gain > MIN_ENGINE_GAIN and verdict.low > 1.0)


def test_equal_rivals_on_a_noisy_machine_rarely_win() -> None:
    wins = sum(Stream(1.0, 1.0, noise=0.3, seed=seed).run().rival_wins for seed in range(100))
    assert wins <= 10


def test_first_batches_of_a_turn_and_batches_of_the_other_plan_do_not_count() -> None:
    turns, now = Turns(BackboneMeasure()), 0.0
    for _ in range(SKIPPED):
        assert not turns.note(batch(100.0, now), of_rival=False)
    for index in range(MIN_BATCHES):
        assert not turns.note(batch(100.0, now), of_rival=True)
        now += TURN_S
        assert turns.note(batch(1.0, now), of_rival=False) is (index == MIN_BATCHES - 1)
    assert turns.rival_runs


def test_batches_that_waited_for_those_of_the_turn_before_do_not_count() -> None:
    turns, now = Turns(BackboneMeasure()), 0.0
    for _ in range(SKIPPED):
        turns.note(batch(1.0, now), of_rival=False)
    turns.note(batch(1.0, 10.0), of_rival=True)
    for index in range(2 * MIN_BATCHES):  # closed before, and out afterwards
        late = BatchSample(10.0 + TURN_S + index, num_images=1, backbone_s=1.0, latency_s=100.0, age_s=1.0)
        assert not turns.note(late, of_rival=False)
    assert not turns.rival_runs


def test_a_slow_camera_makes_turns_longer() -> None:
    turns, now, count = Turns(BackboneMeasure()), 0.0, 0
    has_ended = False
    while not has_ended:
        now += TURN_S
        count += 1
        has_ended = turns.note(batch(1.0, now), of_rival=False)
    assert count == SKIPPED + MIN_BATCHES
