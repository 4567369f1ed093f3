"""Mean average precision: values that follow from counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from split_infer_ros.models.average_precision import Truth, mean_average_precision
from split_infer_ros.models.detections import Detections

BOX = [0.0, 0.0, 10.0, 10.0]
OTHER = [50.0, 50.0, 60.0, 60.0]
FAR = [80.0, 80.0, 90.0, 90.0]


def detections(*found: tuple[list[float], float, int]) -> Detections:
    boxes, scores, labels = zip(*found, strict=True)
    return Detections(np.array(boxes, np.float32), np.array(scores, np.float32), np.array(labels))


def truth(*objects: tuple[list[float], int]) -> Truth:
    boxes, labels = zip(*objects, strict=True)
    return np.array(boxes, np.float32), np.array(labels)


def test_the_truth_itself_has_a_precision_of_one() -> None:
    objects = truth((BOX, 0), (OTHER, 1))
    found = detections((BOX, 0.9, 0), (OTHER, 0.2, 1))
    assert mean_average_precision([found], [objects]) == pytest.approx(1.0)


def test_half_of_the_objects_give_half_of_the_recalls() -> None:
    found = detections((BOX, 0.9, 0))
    value = mean_average_precision([found], [truth((BOX, 0), (OTHER, 0))])
    assert value == pytest.approx(51 / 101)  # recalls 0 to 0.5 in steps of 0.01


@pytest.mark.parametrize(("score", "expected"), [(0.1, 1.0), (0.95, 0.5)])
def test_a_wrong_detection_costs_only_what_ranks_below_it(score: float, expected: float) -> None:
    found = detections((BOX, 0.9, 0), (FAR, score, 0))
    assert mean_average_precision([found], [truth((BOX, 0))]) == pytest.approx(expected)


def test_a_second_detection_of_an_object_is_wrong() -> None:
    found = detections((BOX, 0.9, 0), (BOX, 0.8, 0), (OTHER, 0.7, 0))
    value = mean_average_precision([found], [truth((BOX, 0), (OTHER, 0))])
    assert value == pytest.approx((51 * 1 + 50 * 2 / 3) / 101)


def test_a_shifted_box_counts_up_to_its_overlap() -> None:
    shifted = [0.0, 0.0, 10.0, 8.2]  # an overlap of 0.82: 7 of the 10 overlaps 0.5, 0.55, ... 0.95
    assert mean_average_precision([detections((shifted, 0.9, 0))], [truth((BOX, 0))]) == pytest.approx(0.7)


def test_classes_and_images_are_kept_apart() -> None:
    found = [detections((BOX, 0.9, 1)), detections((OTHER, 0.9, 0))]
    assert mean_average_precision(found, [truth((BOX, 0)), truth((BOX, 0))]) == 0.0


def test_without_objects_there_is_no_value() -> None:
    assert mean_average_precision([Detections.empty()], [(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))]) is None
    with pytest.raises(ValueError, match="1 images and the truth of 0"):
        mean_average_precision([Detections.empty()], [])
