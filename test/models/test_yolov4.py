from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from yolo_maps import check_places

from split_infer_ros.models import yolov3, yolov4
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.yolo import CLASSES, YoloBoxes

pytestmark = pytest.mark.numeric

CELLS = (52, 26, 13)  # of a side, for each stride: 8, 16 and 32
NO_OBJECT = -20.0  # a raw objectness


def predictions_with(place: int, numbers: tuple[float, ...], label: int) -> Tensor:
    """Predictions with one object, of whose objectness and class the network is sure."""
    raw = torch.zeros(1, 3 * sum(cells**2 for cells in CELLS), 5 + CLASSES)
    raw[..., 4:] = NO_OBJECT
    raw[0, place, :4] = torch.tensor(numbers)
    raw[0, place, [4, 5 + label]] = 20.0
    return raw


def anchor_index(level: int, row: int, column: int, anchor: int) -> int:
    """The index of an anchor's prediction."""
    return 3 * (sum(cells**2 for cells in CELLS[:level]) + row * CELLS[level] + column) + anchor


@pytest.mark.parametrize(
    ("level", "row", "column", "anchor", "numbers", "box"),
    [
        # In the middle of the cell no scale counts: centre (164, 84) pixels; 40 wide, twice 28 high.
        (0, 10, 20, 2, (0, 0, 0, math.log(2)), (144.0, 56, 184, 112)),
        # A sigmoid of 3/4 is stretched by 1.1 to 0.775 of a cell of 16 pixels: (92.4, 92.4); half of 76 by 55.
        (1, 5, 5, 1, (math.log(3), math.log(3), -math.log(2), -math.log(2)), (73.4, 78.65, 111.4, 106.15)),
        # A sigmoid of 1 lies 0.025 cells of 32 pixels beyond the cell: (256.8, 224.8) with 142 by 110.
        (2, 6, 7, 0, (50, 50, 0, 0), (185.8, 169.8, 327.8, 279.8)),
        # A sigmoid of 0 lies 0.1 cells of 8 pixels before it: (7.2, 15.2) with 12 by 16.
        (0, 2, 1, 0, (-50, -50, 0, 0), (1.2, 7.2, 13.2, 23.2)),
    ],
)
def test_a_box_is_decoded_as_in_darknet(
    level: int, row: int, column: int, anchor: int, numbers: tuple[float, ...], box: tuple[float, ...]
) -> None:
    raw = predictions_with(anchor_index(level, row, column, anchor), numbers, 17)
    (found,) = yolov4.ENTRIES[0].decode((raw,), Limits())
    np.testing.assert_allclose(found.boxes, [box], rtol=0, atol=1e-3)
    assert found.labels.tolist() == [17]


def test_without_a_scale_centres_stay_in_their_cells() -> None:
    """YOLOv3 is the case of scale 1: its boxes at the largest and lowest numbers touch the cell's borders."""
    raw = torch.zeros(1, 3 * (4 + 16 + 64), 5 + CLASSES)
    raw[..., :2] = 50.0
    boxes = YoloBoxes(yolov3.LEVELS, 64)((raw,)).boxes[0]
    assert (boxes[:, :2] <= boxes[:, 2:]).all()
    raw[..., 2:4] = -50.0  # of no size, so that corners are centres
    corners = YoloBoxes(yolov3.LEVELS, 64)((raw,)).boxes[0, :12:3, 2:]
    assert corners.tolist() == [[32.0, 32.0], [64.0, 32.0], [32.0, 64.0], [64.0, 64.0]]


def test_predictions_lie_where_they_are_decoded() -> None:
    images = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    _, shapes = check_places(yolov4.Yolov4().eval(), images)
    assert shapes == [(1, 255, 8, 12), (1, 255, 4, 6), (1, 255, 2, 3)]


def test_the_pyramid_joins_the_windows_of_darknet() -> None:
    x = torch.zeros(1, 1, 15, 15)
    x[0, 0, 7, 7] = 1.0
    found = yolov4.SpatialPyramid()(x)
    assert found.sum(dim=(0, 2, 3)).tolist() == [13**2, 9**2, 5**2, 1]
    assert torch.equal(found[:, 3:], x)


def test_the_network_has_the_papers_number_of_parameters() -> None:
    with torch.device("meta"):
        net = yolov4.Yolov4()
    assert sum(parameter.numel() for parameter in net.parameters()) == 64_363_101
    largest = max(parameter.nbytes for parameter in net.parameters())
    assert largest == 18 * 2**20, "paper 002: the largest layer has 18.0 MB"


def test_convolutions_run_in_the_order_of_darknets_file() -> None:
    """The channels that convolutions give, as in yolov4.cfg. The batch norms of 107 of 110 are in between."""
    with torch.device("meta"):
        net = yolov4.Yolov4()
    modules = dict(net.named_modules())
    calls = [modules[node.target] for node in fx.symbolic_trace(net).graph.nodes if node.op == "call_module"]
    found = [module.out_channels for module in calls if isinstance(module, nn.Conv2d)]
    backbone = [32, 64, 64, 64, 32, 64, 64, 64]
    for channels, blocks in ((128, 2), (256, 8), (512, 8), (1024, 4)):
        half = channels // 2
        backbone += [channels, half, half, *(2 * blocks * [half]), half, channels]
    pyramid = 2 * [512, 1024, 512]
    up = [256, 256, 256, 512, 256, 512, 256, 128, 128, 128, 256, 128, 256, 128]
    first = [256, 255]
    second = [256, 256, 512, 256, 512, 256, 512, 255]
    third = [512, 512, 1024, 512, 1024, 512, 1024, 255]
    assert found == [*backbone, *pyramid, *up, *first, *second, *third]
    assert sum(isinstance(module, nn.BatchNorm2d) for module in calls) == 107
    assert sum(isinstance(module, nn.Mish) for module in calls) == 72
