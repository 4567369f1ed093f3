"""Decoders of the DETR family and of selected boxes against loops over every query."""

from __future__ import annotations

import math

import pytest
import torch
from plain_boxes import Found, best_first, check_equal, corners_of
from torch import Tensor

from split_infer_ros.models import query_decoders
from split_infer_ros.models.detections import Limits

HEIGHT, WIDTH, CLASSES, QUERIES, IMAGES = 64, 96, 3, 40, 3
LIMITS = [Limits(0.5, 0.5, 300), Limits(0.1, 0.5, 20), Limits(0.99, 0.5, 10), Limits(0.0, 0.5, 3)]


def random(*shape: int, seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


BOXES = random(IMAGES, QUERIES, 4, seed=0)
LOGITS = 6 * random(IMAGES, QUERIES, CLASSES, seed=1) - 3
SCORES = random(IMAGES, QUERIES, CLASSES, seed=2)


def scaled(box: list[float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = corners_of(*box)
    return left * WIDTH, top * HEIGHT, right * WIDTH, bottom * HEIGHT


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("limits", LIMITS)
def test_detr_takes_the_best_of_queries_and_classes(limits: Limits, order: tuple[int, int]) -> None:
    outputs = (LOGITS, BOXES) if order == (0, 1) else (BOXES, LOGITS)
    found = query_decoders.detr(HEIGHT, WIDTH, order)(outputs, limits)
    assert len(found) == IMAGES
    for detections, boxes, logits in zip(found, BOXES.tolist(), LOGITS.tolist(), strict=True):
        pairs: list[Found] = [
            (scaled(box), 1 / (1 + math.exp(-logit)), label)
            for box, row in zip(boxes, logits, strict=True)
            for label, logit in enumerate(row)
        ]
        expected = best_first(pairs, Limits(limits.score_threshold, 0.5, min(limits.max_detections, QUERIES)))
        check_equal(detections, expected)
    if limits.max_detections == 20:  # a query may have several classes
        assert any(len(set(map(tuple, each.boxes.tolist()))) < len(each) for each in found)


@pytest.mark.parametrize("limits", LIMITS)
def test_softmax_detr_leaves_out_the_last_class(limits: Limits) -> None:
    found = query_decoders.detr_softmax(HEIGHT, WIDTH, (0, 1))((LOGITS, BOXES), limits)
    for detections, boxes, logits in zip(found, BOXES.tolist(), LOGITS.tolist(), strict=True):
        expected: list[Found] = []
        for box, row in zip(boxes, logits, strict=True):
            total = sum(math.exp(logit) for logit in row)
            best = max(row[:-1])
            expected.append((scaled(box), math.exp(best) / total, row[:-1].index(best)))
        check_equal(detections, best_first(expected, limits))


@pytest.mark.parametrize("limits", LIMITS)
def test_rtdetr_gives_each_query_its_best_class(limits: Limits) -> None:
    found = query_decoders.rtdetr(HEIGHT, WIDTH)((torch.cat((BOXES, SCORES), 2),), limits)
    for detections, boxes, scores in zip(found, BOXES.tolist(), SCORES.tolist(), strict=True):
        expected: list[Found] = [
            (scaled(box), max(row), row.index(max(row))) for box, row in zip(boxes, scores, strict=True)
        ]
        check_equal(detections, best_first(expected, limits))


@pytest.mark.parametrize("limits", LIMITS)
def test_rtdetr_end_to_end_is_read_as_it_is(limits: Limits) -> None:
    labels = torch.arange(QUERIES).remainder(CLASSES).expand(IMAGES, QUERIES)[..., None]
    raw = torch.cat((BOXES, SCORES[..., :1], labels), 2)
    for detections, image in zip(
        query_decoders.rtdetr_end_to_end(HEIGHT, WIDTH)((raw,), limits), raw.tolist(), strict=True
    ):
        expected: list[Found] = [(scaled(row[:4]), row[4], int(row[5])) for row in image]
        check_equal(detections, best_first(expected, limits))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
@pytest.mark.parametrize("batched", [True, False])
def test_selected_boxes_are_read_in_the_files_order(batched: bool, dtype: torch.dtype) -> None:
    labels = torch.arange(QUERIES).remainder(CLASSES).expand(IMAGES, QUERIES).to(dtype)
    boxes = torch.cat((BOXES[..., :2], BOXES[..., :2] + BOXES[..., 2:]), 2) * 50
    scores = SCORES[..., 0]
    order = (2, 0, 1)  # labels, scores, boxes
    outputs = (labels, scores, boxes) if batched else (labels[0], scores[0], boxes[0])
    found = query_decoders.torchvision(order)(outputs, Limits(0.3))
    assert len(found) == (IMAGES if batched else 1)
    for index, detections in enumerate(found):
        rows = zip(boxes[index].tolist(), scores[index].tolist(), labels[index].tolist(), strict=True)
        expected: list[Found] = [((box[0], box[1], box[2], box[3]), score, int(label)) for box, score, label in rows]
        check_equal(detections, best_first(expected, Limits(0.3)))
