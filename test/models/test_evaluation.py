"""Matching of detections on hand-made cases. Boxes are squares of side 10, with one exception."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from split_infer_ros.models.detections import Detections
from split_infer_ros.models.evaluation import Matcher, Score, f1


def at(*lefts: float) -> NDArray[np.float32]:
    """Boxes of side 10 at these left edges. Shifted by 2, two of them have an IoU of 2/3; shifted by 5, of 1/3."""
    return np.array([[x, 0, x + 10, 10] for x in lefts], np.float32).reshape(-1, 4)


def detections(*objects: tuple[float, float, int]) -> Detections:
    """Detections of (left, score, label)."""
    return Detections(
        at(*(left for left, _, _ in objects)),
        np.array([score for _, score, _ in objects], np.float32),
        np.array([label for _, _, label in objects], np.int64),
    )


def count(found: Detections, boxes: NDArray[np.float32], *labels: int) -> tuple[int, int, int]:
    score = f1([found], [(boxes, np.array(labels, np.int64))])
    return score.true_positives, score.false_positives, score.false_negatives


def test_hits_misses_and_false_alarms_are_counted() -> None:
    assert count(detections((2, 0.9, 0), (200, 0.8, 0)), at(0, 100), 0, 0) == (1, 1, 1)


def test_another_class_is_no_match() -> None:
    assert count(detections((0, 0.9, 1)), at(0), 0) == (0, 1, 1)


def test_too_little_overlap_is_no_match() -> None:
    assert count(detections((5, 0.9, 0)), at(0), 0) == (0, 1, 1)


def test_exactly_enough_overlap_is_a_match() -> None:
    # The box is half as wide, so the IoU is 0.5.
    found = Detections(np.array([[0, 0, 5, 10]], np.float32), np.array([0.9], np.float32), np.array([0]))
    assert count(found, at(0), 0) == (1, 0, 0)


def test_an_object_is_matched_once() -> None:
    assert count(detections((0, 0.9, 0), (1, 0.8, 0)), at(0), 0) == (1, 1, 0)


def test_the_best_score_chooses_first_in_any_order() -> None:
    # The detection at 1 overlaps both objects enough, but prefers the object at 0, the only one for that at -2.
    assert count(detections((-2, 0.5, 0), (1, 0.9, 0)), at(0, 4), 0, 0) == (1, 1, 1)
    assert count(detections((-2, 0.9, 0), (1, 0.5, 0)), at(0, 4), 0, 0) == (2, 0, 0)


def test_a_detection_takes_the_object_it_overlaps_most() -> None:
    assert count(detections((2, 0.9, 0), (0, 0.8, 0)), at(0, 3), 0, 0) == (2, 0, 0)


def test_empty_images_are_counted() -> None:
    assert count(Detections.empty(), at(0, 50), 0, 1) == (0, 0, 2)
    assert count(detections((0, 0.9, 0)), at()) == (0, 1, 0)
    assert count(Detections.empty(), at()) == (0, 0, 0)


def test_ratios_are_computed_from_counts() -> None:
    score = Score(true_positives=6, false_positives=2, false_negatives=4)
    assert score.precision == pytest.approx(0.75)
    assert score.recall == pytest.approx(0.6)
    assert score.f1 == pytest.approx(2 * 0.75 * 0.6 / (0.75 + 0.6))
    assert Score(0, 0, 0).f1 == Score(0, 0, 0).precision == Score(0, 0, 0).recall == 0


def test_counting_image_by_image_equals_all_at_once() -> None:
    images = [(detections((0, 0.9, 0)), at(0), [0]), (detections((0, 0.9, 1), (30, 0.4, 1)), at(0, 60), [1, 1])]
    matcher = Matcher()
    for found, boxes, labels in images:
        matcher.add(found, boxes, np.array(labels))
    at_once = f1([i[0] for i in images], [(i[1], np.array(i[2])) for i in images])
    assert matcher.score() == at_once == Score(2, 1, 1)


def test_images_do_not_share_objects() -> None:
    nothing = (at(), np.zeros(0, np.int64))
    assert f1([detections((0, 0.9, 0)), Detections.empty()], [nothing, (at(0), np.array([0]))]) == Score(0, 1, 1)


def test_the_overlap_threshold_can_be_set() -> None:
    truth = [(at(0), np.array([0]))]
    assert f1([detections((2, 0.9, 0))], truth, iou=0.6).true_positives == 1
    assert f1([detections((2, 0.9, 0))], truth, iou=0.7).true_positives == 0


def test_unequal_numbers_of_images_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        f1([Detections.empty()], [])
