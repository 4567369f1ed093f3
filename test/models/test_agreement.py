"""How far detections agree with those of a reference, and how sure that is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.models.agreement import MAP, TOP_1, Agreement
from split_infer_ros.models.average_precision import MatchedFrames, Truth, mean_average_precision
from split_infer_ros.models.detections import Detections

BOXES = [[0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0], [80.0, 80.0, 95.0, 90.0]]


def detections(*found: tuple[int, float, int]) -> Detections:
    """Returns detections, each with the number of its box, its score and its label."""
    boxes = np.array([BOXES[box] for box, _, _ in found], np.float32).reshape(-1, 4)
    return Detections(boxes, np.array([score for _, score, _ in found], np.float32), np.array([x for *_, x in found]))


GOOD = detections((0, 0.9, 0), (1, 0.8, 1))
SHIFTED = Detections(GOOD.boxes + np.float32(1.0), GOOD.scores, GOOD.labels)
NOTHING = Detections.empty()


def of(*frames: tuple[Detections, Detections], classifies: bool = False) -> Agreement:
    agreement = Agreement(classifies=classifies)
    for reference, found in frames:
        agreement.add(reference, found)
    return agreement


def low_and_high(agreement: Agreement) -> tuple[float, float]:
    bounds = agreement.bounds()
    assert bounds is not None
    return bounds


def test_equal_detections_agree_fully() -> None:
    agreement = of(*[(GOOD, GOOD)] * 8)
    assert (agreement.measure, len(agreement)) == (MAP, 8)
    assert agreement.value == 1.0
    assert low_and_high(agreement) == (1.0, 1.0)


def test_boxes_that_differ_agree_less() -> None:
    agreement = of(*[(GOOD, GOOD)] * 6, *[(GOOD, SHIFTED)] * 2)
    low, high = low_and_high(agreement)
    assert agreement.value is not None
    assert low < agreement.value < high <= 1.0
    assert agreement.value == mean_average_precision([GOOD] * 6 + [SHIFTED] * 2, [(GOOD.boxes, GOOD.labels)] * 8)


def test_more_frames_make_the_bounds_surer() -> None:
    few, many = (low_and_high(of(*[(GOOD, GOOD), (GOOD, SHIFTED)] * count)) for count in (8, 64))
    assert few[1] - few[0] > many[1] - many[0] > 0.0


def test_frames_in_which_the_reference_finds_nothing_do_not_count() -> None:
    weak = detections((0, 0.4, 0))  # below the threshold of objects
    agreement = of((NOTHING, GOOD), (weak, GOOD))
    assert len(agreement) == 0
    assert agreement.value is agreement.bounds() is None


def test_a_classifier_agrees_in_its_best_class() -> None:
    cat, dog = detections((0, 0.3, 0)), detections((0, 0.3, 1))
    agreement = of((cat, cat), (cat, dog), (dog, dog), (dog, dog), classifies=True)
    assert (agreement.measure, agreement.value) == (TOP_1, 0.75)
    assert agreement.limits.max_detections == 1


@pytest.mark.parametrize(
    ("count", "wrong", "low", "high"), [(64, 0, 0.954, 1.0), (300, 0, 0.990, 1.0), (64, 1, 0.928, 0.999)]
)
def test_a_classifiers_bounds_are_sure_of_no_more_than_its_frames_show(
    count: int, wrong: int, low: float, high: float
) -> None:
    cat, dog = detections((0, 0.3, 0)), detections((0, 0.3, 1))
    agreement = of(*[(cat, cat)] * (count - wrong), *[(cat, dog)] * wrong, classifies=True)
    assert low_and_high(agreement) == pytest.approx((low, high), abs=0.001)


def test_a_smaller_error_makes_the_bounds_wider() -> None:
    cat, dog = detections((0, 0.3, 0)), detections((0, 0.3, 1))
    for agreement in (of(*[(GOOD, GOOD), (GOOD, SHIFTED)] * 8), of(*[(cat, cat), (cat, dog)] * 8, classifies=True)):
        sure = agreement.bounds(0.005)
        assert sure is not None
        low, high = low_and_high(agreement)
        assert sure[0] < low < high < sure[1]


@st.composite
def _scenes(draw: st.DrawFn) -> list[tuple[Detections, Truth]]:
    scenes, scores = [], iter(draw(st.permutations([step / 64 for step in range(64)])))  # no two are equal
    for _ in range(draw(st.integers(1, 4))):
        drawn = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=16))
        found = [(box, next(scores), label) for box, label in drawn]
        objects = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1))))
        boxes = np.array([BOXES[box] for box, _ in objects], np.float32).reshape(-1, 4)
        scenes.append((detections(*found), (boxes, np.array([label for _, label in objects], np.int64))))
    return scenes


@given(_scenes(), st.data())
def test_a_frame_that_counts_twice_is_like_two_frames(
    scenes: list[tuple[Detections, Truth]], data: st.DataObject
) -> None:
    counts = data.draw(st.lists(st.integers(0, 3), min_size=len(scenes), max_size=len(scenes)))
    repeated = [scene for scene, count in zip(scenes, counts, strict=True) for _ in range(count)]
    value = MatchedFrames(*map(list, zip(*scenes, strict=True))).mean_average_precision(np.array(counts))
    expected = mean_average_precision(*map(list, zip(*repeated, strict=True))) if repeated else None
    assert value == (None if expected is None else pytest.approx(expected, abs=1e-12))  # sums of other orders
