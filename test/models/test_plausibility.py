from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from split_infer_ros.models.decoders.decode import LayoutDecoder
from split_infer_ros.models.decoders.layout import OutputLayout, Part, Suppression
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.plausibility import drop_impossible

GOOD = ((1.0, 2.0, 3.0, 4.0), 0.5, 2)
Row = tuple[tuple[float, ...], float, int]


def detections(*rows: Row) -> Detections:
    boxes, scores = (np.array([row[index] for row in rows], np.float32) for index in (0, 1))
    return Detections(boxes.reshape(-1, 4), scores, np.array([row[2] for row in rows], np.int64))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (((math.nan, 2, 3, 4), 0.5, 2), "box_not_finite"),
        (((1, 2, math.inf, 4), 0.5, 2), "box_not_finite"),
        (((1, -math.inf, 3, 4), 0.5, 2), "box_not_finite"),
        (((3, 2, 1, 4), 0.5, 2), "box_of_negative_size"),
        (((1, 4, 3, 2), 0.5, 2), "box_of_negative_size"),
        (((1, 2, 3, 4), math.nan, 2), "score_out_of_range"),
        (((1, 2, 3, 4), 1.01, 2), "score_out_of_range"),
        (((1, 2, 3, 4), -0.01, 2), "score_out_of_range"),
        (((1, 2, 3, 4), 0.5, 3), "unknown_label"),
        (((1, 2, 3, 4), 0.5, -1), "unknown_label"),
        (((math.nan, 2, 1, 4), 7.0, 9), "box_not_finite"),
    ],
)
def test_impossible_detections_are_counted_by_reason(row: Row, reason: str) -> None:
    found = [detections(GOOD, row, GOOD), detections(), detections(row)]
    possible, dropped = drop_impossible(found, 3)
    assert dropped == Counter({reason: 2})
    assert [len(one) for one in possible] == [2, 0, 0]
    assert possible[0].boxes.tolist() == [list(GOOD[0])] * 2
    assert possible[0].labels.tolist() == [2, 2]


@pytest.mark.parametrize("rows", [[], [GOOD, ((1, 2, 1, 2), 0.0, 0), ((-5, 0, 1e9, 0), 1.0, 1)]])
def test_possible_detections_are_returned_unchanged(rows: list[Row]) -> None:
    found = [detections(*rows), Detections.empty()]
    possible, dropped = drop_impossible(found, 3)
    assert possible is found
    assert not dropped


@pytest.mark.parametrize(
    ("row", "mended"),
    [
        (((1, 2, 3, 4), 1.0000001, 2), ((1, 2, 3, 4), 1.0, 2)),
        (((1, 2, 3, 4), 1.00005, 2), ((1, 2, 3, 4), 1.0, 2)),
        (((1, 2, 1 - 1e-5, 4), 0.5, 2), ((1, 2, 1, 4), 0.5, 2)),
        (((1, 2, 3, 2 - 1e-5), 0.5, 2), ((1, 2, 3, 2), 0.5, 2)),
        (((1, 2, 1 - 1e-5, 2 - 1e-5), 1.00001, 0), ((1, 2, 1, 2), 1.0, 0)),
    ],
)
def test_rounding_is_mended(row: Row, mended: Row) -> None:
    """What is mended is exact: a score of 1, and a side of 0."""
    possible, dropped = drop_impossible([detections(row, GOOD), detections(), detections(GOOD)], 3)
    assert not dropped
    assert [len(each) for each in possible] == [2, 0, 1]
    assert possible[0].boxes.tolist() == [list(mended[0]), list(GOOD[0])]
    assert possible[0].scores.tolist() == [mended[1], GOOD[1]]
    assert possible[0].labels.tolist() == [mended[2], GOOD[2]]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (((1, 2, 3, 4), 1.001, 2), "score_out_of_range"),
        (((1, 2, 3, 4), -1e-6, 2), "score_out_of_range"),
        (((1, 2, 0.99, 4), 0.5, 2), "box_of_negative_size"),
        (((1, 2, 1 - 1e-5, 1), 0.5, 2), "box_of_negative_size"),
    ],
)
def test_what_is_more_than_rounding_is_dropped(row: Row, reason: str) -> None:
    possible, dropped = drop_impossible([detections(row, GOOD)], 3)
    assert dropped == Counter({reason: 1})
    assert possible[0].boxes.tolist() == [list(GOOD[0])]


def test_mending_leaves_the_given_detections_alone() -> None:
    given = detections(((1, 2, 1 - 1e-5, 4), 1.00001, 2))
    before = given.scores.copy(), given.boxes.copy()
    drop_impossible([given], 3)
    assert np.array_equal(given.scores, before[0])
    assert np.array_equal(given.boxes, before[1])


@pytest.mark.parametrize(("number", "label"), [(1.9999, 2), (2.004, 2), (0.0, 0), (-0.001, 0)])
def test_a_class_of_a_network_is_whole_but_for_rounding(number: float, label: int) -> None:
    possible, dropped = drop_impossible(decoded(number), 3)
    assert not dropped
    assert possible[0].labels.tolist() == [label]


@pytest.mark.parametrize("number", [1.5, 1.98, -1.0, 3.0, math.nan, math.inf, -math.inf, 1e30])
def test_a_class_that_is_none_is_unknown(number: float) -> None:
    possible, dropped = drop_impossible(decoded(number), 3)
    assert dropped == Counter({"unknown_label": 1})
    assert len(possible[0]) == 0


def decoded(number: float) -> list[Detections]:
    """A network's only box, whose class is this number."""
    names = ("out",)
    layout = OutputLayout(
        "end_to_end", Part(names, 0, 4), Part(names, 4, 5), Part(names, 5, 6), suppression=Suppression.NONE
    )
    return LayoutDecoder(layout, names, 64, 64)((np.array([[[1, 2, 3, 4, 0.9, number]]], np.float32),), Limits())
