from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from split_infer_ros.models.detections import Detections
from split_infer_ros.models.plausibility import drop_impossible

GOOD = ((1.0, 2.0, 3.0, 4.0), 0.5, 2)
Row = tuple[tuple[float, ...], float, int]


def detections(*rows: Row) -> Detections:
    boxes, scores = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    return Detections(boxes.reshape(-1, 4), scores, torch.tensor([row[2] for row in rows], dtype=torch.int64))


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
