"""Do both ways find the same objects, and what is claimed of the small detector?"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from benchmarks.common.claim import Verdict
from benchmarks.vision_ops import detector_latency as bench
from benchmarks.vision_ops import fallback_cost
from split_infer_ros.models.candidates import Candidates, suppress
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.yolo import YoloBoxes
from split_infer_ros.models.yolov3 import LEVELS


@pytest.mark.slow
def test_the_small_detector_is_measured_in_both_ways() -> None:
    detector = bench.DetectorContest("ssdlite320")
    detector.contest.take()
    assert [row["rival"] for row in detector.rows()] == [bench.NETWORK, bench.BEFORE, bench.AFTER]
    assert all(row["ms"] > 0 and row["peak_mb"] > 0 for row in detector.rows())


def test_the_network_counts_for_both_ways() -> None:
    detector = bench.DetectorContest("ssdlite320")
    detector.contest.figures.update({bench.NETWORK: [1.0] * 10, bench.BEFORE: [2.0] * 10, bench.AFTER: [0.5] * 10})
    (claim,) = detector.claims()
    assert claim.found.value == pytest.approx(2.0)
    assert claim.verdict == Verdict.HOLDS
    assert claim.name.startswith("SSD_MobileNet, one image")
    assert detector.totals_ms() == {bench.BEFORE: [3000.0] * 10, bench.AFTER: [1500.0] * 10}


@pytest.fixture(scope="module")
def shared() -> fallback_cost.FallbackContest:
    return fallback_cost.FallbackContest("ssdlite320")


@pytest.fixture
def placed(shared: fallback_cost.FallbackContest, monkeypatch: pytest.MonkeyPatch) -> fallback_cost.FallbackContest:
    """A contest without turns. The test may change them, and whether the contest is simulated."""
    monkeypatch.setattr(shared, "is_simulated", shared.is_simulated)
    monkeypatch.setattr(shared, "contest", replace(shared.contest, figures={}, turns=0, spent_s=0.0))
    return shared


@pytest.mark.slow
def test_copies_of_a_placed_detector_are_counted(placed: fallback_cost.FallbackContest) -> None:
    for _ in range(5):  # the overhead is a median, so one turn that was held up does not count
        placed.contest.take()
    for row in placed.rows():
        assert (row["copies"], row["copied_bytes"]) == (1, 1_228_920)
        assert row["what"].startswith("simulated") is placed.is_simulated
    assert 0 < placed.overhead().value < 50 or not placed.is_simulated


def test_fallback_between_a_cpu_and_itself_claims_nothing(placed: fallback_cost.FallbackContest) -> None:
    placed.is_simulated = True
    placed.contest.figures.update({fallback_cost.PLACED: [5.0] * 10, fallback_cost.COPIES: [1.0] * 10})
    assert placed.overhead().value == pytest.approx(25.0)
    assert placed.claims() == []


def test_fallback_on_a_gpu_is_claimed(placed: fallback_cost.FallbackContest) -> None:
    placed.is_simulated = False
    placed.contest.figures.update({fallback_cost.PLACED: [5.0] * 10, fallback_cost.ONE_DEVICE: [4.0] * 10})
    (claim,) = placed.claims()
    assert claim.found.value == pytest.approx(25.0)
    assert claim.verdict == Verdict.FAILS
    placed.contest.figures[fallback_cost.PLACED] = [3.9] * 10  # what falls back may be faster there
    assert placed.claims()[0].verdict == Verdict.HOLDS
    assert math.isnan(placed.claims()[0].settles_s)


@pytest.mark.parametrize("shapes", [((2, 3234, 91), (2, 3234, 4)), ((2, 10647, 85),)])
def test_drawn_answers_hold_objects_and_both_ways_find_the_same(shapes: tuple[tuple[int, ...], ...]) -> None:
    drawn = bench.drawn_like(tuple(torch.empty(shape) for shape in shapes))
    assert tuple(part.shape for part in drawn) == shapes
    if len(drawn) == 1:
        candidates = YoloBoxes(LEVELS)(drawn)
    else:
        candidates = Candidates(1000 * drawn[1].abs().cumsum(2), drawn[0].softmax(2)[..., 1:], max_per_class=300)
    found = suppress(candidates, bench.LIMITS)
    assert all(len(one) >= bench.OBJECTS for one in found)
    bench.same(found, bench.class_by_class(candidates, bench.LIMITS))
    with pytest.raises(AssertionError):
        bench.same(found, bench.class_by_class(candidates, Limits(1.0)))
    bench.same(suppress(candidates, Limits(1.0)), bench.class_by_class(candidates, Limits(1.0)))
