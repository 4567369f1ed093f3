from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from yolo_maps import check_places

from split_infer_ros.models import yolov3
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.yolo import CLASSES

pytestmark = pytest.mark.numeric

CELLS = (13, 26, 52)  # of a side, for each stride
NO_OBJECT = -20.0  # a raw objectness


def empty(images: int = 1) -> Tensor:
    """Predictions without any object."""
    raw = torch.zeros(images, 3 * sum(cells**2 for cells in CELLS), 5 + CLASSES)
    raw[..., 4:] = NO_OBJECT
    return raw


def anchor_index(level: int, row: int, column: int, anchor: int) -> int:
    """The index of an anchor's prediction."""
    return 3 * (sum(cells**2 for cells in CELLS[:level]) + row * CELLS[level] + column) + anchor


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


def put(raw: Tensor, place: int, box: tuple[float, ...], objectness: float, label: int, score: float) -> None:
    raw[0, place, :4] = torch.tensor(box)
    raw[0, place, 4] = logit(objectness)
    raw[0, place, 5 + label] = logit(score)


@pytest.mark.parametrize(
    ("level", "row", "column", "anchor", "numbers", "box"),
    [
        # Centre (5.5, 2.75) in cells of 32 pixels; 156 wide, half of 198 high.
        (0, 2, 5, 1, (0, math.log(3), 0, -math.log(2)), (98, 38.5, 254, 137.5)),
        # Centre (20.25, 9.5) in cells of 16 pixels; 4/3 of 30 wide, 61 high.
        (1, 9, 20, 0, (-math.log(3), 0, math.log(4 / 3), 0), (304, 121.5, 344, 182.5)),
        # Centre (51.5, 51.5) in cells of 8 pixels; twice 33 wide, 23 high. 445 lies beyond the image's 416.
        (2, 51, 51, 2, (0, 0, math.log(2), 0), (379, 400.5, 416, 416)),
    ],
)
def test_a_box_is_decoded_as_in_the_paper(
    level: int, row: int, column: int, anchor: int, numbers: tuple[float, ...], box: tuple[float, ...]
) -> None:
    raw = empty()
    put(raw, anchor_index(level, row, column, anchor), numbers, 0.9, 17, 0.8)
    (found,) = yolov3.ENTRIES[0].decode((raw,), Limits())
    np.testing.assert_allclose(found.boxes, [box], rtol=0, atol=1e-3)
    assert found.scores.tolist() == pytest.approx([0.9 * 0.8])
    assert found.labels.tolist() == [17]


def test_classes_are_suppressed_separately() -> None:
    raw = empty(2)
    for place, objectness in (
        (anchor_index(0, 6, 6, 0), 0.9),
        (anchor_index(0, 6, 6, 0) + 3, 0.8),
    ):  # neighbouring cells
        put(raw, place, (2.0 if objectness > 0.85 else -2.0, 0, 0, 0), objectness, 3, 0.99)
    raw[0, anchor_index(0, 6, 6, 0), 5 + 4] = logit(0.7)
    found, other = yolov3.ENTRIES[0].decode((raw,), Limits())
    assert found.labels.tolist() == [3, 4]
    assert found.scores.tolist() == pytest.approx([0.9 * 0.99, 0.9 * 0.7])
    assert len(other) == 0


def test_predictions_lie_where_they_are_decoded() -> None:
    images = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    raw, shapes = check_places(yolov3.Yolov3().eval(), images)
    assert shapes == [(2, 255, 2, 3), (2, 255, 4, 6), (2, 255, 8, 12)]
    assert raw.shape == (2, 3 * (6 + 24 + 96), 85)


def test_the_network_has_the_papers_number_of_parameters() -> None:
    with torch.device("meta"):
        net = yolov3.Yolov3()
    assert sum(parameter.numel() for parameter in net.parameters()) == 61_949_149
    assert len(net.backbone.stages) == 5
