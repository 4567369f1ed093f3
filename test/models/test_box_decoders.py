"""Decoders of the YOLO family against loops over every box."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from plain_boxes import Found, best_first, check_equal, corners_of, suppressed
from torch import Tensor

from split_infer_ros.models.box_decoders import (
    CANDIDATES_PER_DETECTION,
    STRIDES,
    YoloxDecoder,
    best_of,
    decode_end_to_end,
    decode_yolov5,
    decode_yolov8,
)
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import Decode

HEIGHT, WIDTH, CLASSES, IMAGES = 64, 96, 3, 3
CELLS = sum((HEIGHT // stride) * (WIDTH // stride) for stride in STRIDES)  # 126
LIMITS = [Limits(0.5, 0.4, 50), Limits(0.05, 0.7, 300), Limits(0.8, 0.1, 5), Limits(0.9999, 0.5, 10)]


def raw_boxes(count: int, seed: int = 0) -> Tensor:
    """Centres all over the input and sizes of 8 to 40 pixels, which overlap often: (IMAGES, count, 4)."""
    numbers = torch.rand((IMAGES, count, 4), generator=torch.Generator().manual_seed(seed))
    return numbers * torch.tensor([WIDTH, HEIGHT, 32.0, 32.0]) + torch.tensor([0.0, 0.0, 8.0, 8.0])


def raw_scores(count: int, classes: int, seed: int = 1) -> Tensor:
    return torch.rand((IMAGES, count, classes), generator=torch.Generator().manual_seed(seed))


def check(decode: Decode, raw: Tensor, reference: Callable[[list[float]], Found], limits: Limits) -> None:
    """Compares with the reference, which reads one box's numbers."""
    found = decode((raw,), limits)
    assert len(found) == IMAGES
    for detections, image in zip(found, raw, strict=True):
        check_equal(detections, suppressed([reference(row) for row in image.tolist()], limits))


def best_class(scores: list[float]) -> tuple[float, int]:
    return max(scores), scores.index(max(scores))


@pytest.mark.parametrize(("spread", "limits", "is_enough"), [
    (1.0, Limits(0.05, 0.4, 4), True),
    (0.02, Limits(0.05, 0.1, 30), False),
])  # fmt: skip
def test_yolov8_reads_the_rest_if_the_best_suppress_each_other(spread: float, limits: Limits, is_enough: bool) -> None:
    """Boxes close together suppress most others, so that the best ones are not enough. Scores repeat."""
    scores = (raw_scores(CELLS, CLASSES) * 8).round() / 8
    rows = torch.cat((raw_boxes(CELLS) * torch.tensor([spread, spread, 1.0, 1.0]), scores), 2)
    assert CANDIDATES_PER_DETECTION * limits.max_detections < CELLS
    found = decode_yolov8((rows.transpose(1, 2),), limits)
    for detections, image in zip(found, rows.tolist(), strict=True):
        assert (len(detections) == limits.max_detections) == is_enough
        check_equal(detections, suppressed([(corners_of(*row[:4]), *best_class(row[4:])) for row in image], limits))


@pytest.mark.parametrize("limits", LIMITS)
def test_yolov8_equals_loops(limits: Limits) -> None:
    rows = torch.cat((raw_boxes(CELLS), raw_scores(CELLS, CLASSES)), 2)

    def plain(row: list[float]) -> Found:
        return (corners_of(*row[:4]), *best_class(row[4:]))

    check(lambda outputs, limits: decode_yolov8((outputs[0].transpose(1, 2),), limits), rows, plain, limits)


@pytest.mark.parametrize("limits", LIMITS)
def test_yolov5_equals_loops(limits: Limits) -> None:
    rows = torch.cat((raw_boxes(CELLS), raw_scores(CELLS, 1, 2) ** 0.2, raw_scores(CELLS, CLASSES)), 2)

    def plain(row: list[float]) -> Found:
        score, label = best_class(row[5:])
        return corners_of(*row[:4]), row[4] * score, label

    check(decode_yolov5, rows, plain, limits)


@pytest.mark.parametrize("limits", LIMITS)
def test_yolox_equals_loops_over_its_grids(limits: Limits) -> None:
    generator = torch.Generator().manual_seed(3)
    raw = torch.cat((torch.rand((IMAGES, CELLS, 4), generator=generator), raw_scores(CELLS, CLASSES + 1)), 2)
    raw[..., 4] **= 0.2
    cells = [
        (column, row, stride)
        for stride in STRIDES
        for row in range(HEIGHT // stride)
        for column in range(WIDTH // stride)
    ]
    places = iter(cells * IMAGES)

    def plain(row: list[float]) -> Found:
        column, line, stride = next(places)
        sizes = [float(torch.tensor(number).exp()) * stride for number in row[2:4]]
        score, label = best_class(row[5:])
        return corners_of((row[0] + column) * stride, (row[1] + line) * stride, *sizes), row[4] * score, label

    check(YoloxDecoder(HEIGHT, WIDTH), raw, plain, limits)


def test_end_to_end_keeps_what_the_network_kept() -> None:
    """Nothing is suppressed: two equal boxes of a class stay, and only the threshold and the number count."""
    boxes = raw_boxes(40)
    corner = torch.cat((boxes[..., :2], boxes[..., :2] + boxes[..., 2:]), 2)
    labels = torch.arange(40).remainder(CLASSES).expand(IMAGES, 40)[..., None]
    raw = torch.cat((corner, raw_scores(40, 1), labels), 2)
    raw[:, 1] = raw[:, 0]
    for limits in LIMITS:
        for detections, image in zip(decode_end_to_end((raw,), limits), raw.tolist(), strict=True):
            expected: list[Found] = [((row[0], row[1], row[2], row[3]), row[4], int(row[5])) for row in image]
            check_equal(detections, best_first(expected, limits))


@pytest.mark.parametrize(
    ("decode", "shape"),
    [
        (decode_yolov8, (2, 4 + CLASSES, CELLS)),
        (decode_yolov5, (2, CELLS, 5 + CLASSES)),
        (YoloxDecoder(HEIGHT, WIDTH), (2, CELLS, 5 + CLASSES)),
        (decode_end_to_end, (2, 20, 6)),
    ],
)
def test_images_without_objects_give_empty_detections(decode: Decode, shape: tuple[int, ...]) -> None:
    for detections in decode((torch.zeros(shape),), Limits()):
        assert detections.boxes.shape == (0, 4)
        assert detections.boxes.dtype == detections.scores.dtype == torch.float32
        assert detections.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("decode", "shape"), [(decode_yolov8, (2, 4 + CLASSES, CELLS)), (decode_end_to_end, (2, 20, 6))]
)
def test_nan_is_no_detection(decode: Decode, shape: tuple[int, ...]) -> None:
    raw = torch.full(shape, 0.9)
    raw[0] = torch.nan
    empty, filled = decode((raw,), Limits())
    assert len(empty) == 0
    assert len(filled) > 0


def test_detections_own_their_memory() -> None:
    """The next batch overwrites the outputs, while detections are still published."""
    raw = torch.cat((raw_boxes(CELLS), raw_scores(CELLS, CLASSES)), 2)
    for decode, outputs in ((decode_yolov8, raw.transpose(1, 2).contiguous()), (decode_end_to_end, raw[..., :6])):
        found: list[Detections] = decode((outputs,), Limits(0.3))
        before = [(each.boxes.clone(), each.scores.clone(), each.labels.clone()) for each in found]
        outputs.zero_()
        for each, (boxes, scores, labels) in zip(found, before, strict=True):
            assert len(each) > 0
            assert torch.equal(each.boxes, boxes)
            assert torch.equal(each.scores, scores)
            assert torch.equal(each.labels, labels)


def test_best_boxes_come_first_and_equal_scores_in_order() -> None:
    scores = torch.tensor([0.6, torch.nan, 0.9, 0.6, 0.2])
    found = best_of(torch.arange(20.0).view(5, 4), scores, torch.arange(5), Limits(0.5))
    assert found.labels.tolist() == [2, 0, 3]
    assert found.boxes[0].tolist() == [8, 9, 10, 11]
