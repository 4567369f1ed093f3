"""Decoders of outputs on the simulated GPU: their constants are there, and they find what they find on the CPU."""

from __future__ import annotations

import pytest
import torch
from simulated_gpu import GPU, Gpu
from torch import Tensor

from split_infer_ros.models import query_decoders
from split_infer_ros.models.box_decoders import (
    STRIDES,
    YoloxDecoder,
    decode_end_to_end,
    decode_yolov5,
    decode_yolov8,
)
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.entry import Decode

HEIGHT, WIDTH, CLASSES, QUERIES = 64, 96, 3, 40
CELLS = sum((HEIGHT // stride) * (WIDTH // stride) for stride in STRIDES)
LIMITS = Limits(score_threshold=0.3, max_detections=20)
QUERY_SHAPES = ((2, QUERIES, CLASSES), (2, QUERIES, 4))


def boxes_and_classes(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize(
    ("decode", "shapes"),
    [
        (query_decoders.detr(HEIGHT, WIDTH, (0, 1)), QUERY_SHAPES),
        (query_decoders.detr_softmax(HEIGHT, WIDTH, (0, 1)), QUERY_SHAPES),
        (query_decoders.rtdetr(HEIGHT, WIDTH), ((2, QUERIES, 4 + CLASSES),)),
        (query_decoders.rtdetr_end_to_end(HEIGHT, WIDTH), ((2, QUERIES, 6),)),
        (decode_yolov8, ((2, 4 + CLASSES, CELLS),)),
        (decode_yolov5, ((2, CELLS, 5 + CLASSES),)),
        (YoloxDecoder(HEIGHT, WIDTH), ((2, CELLS, 5 + CLASSES),)),
        (decode_end_to_end, ((2, QUERIES, 6),)),
    ],
    ids=["detr", "detr_softmax", "rtdetr", "rtdetr_end_to_end", "yolov8", "yolov5", "yolox", "end_to_end"],
)
def test_decoders_find_on_a_gpu_what_they_find_on_the_cpu(
    decode: Decode, shapes: tuple[tuple[int, ...], ...], gpu: Gpu
) -> None:
    outputs = tuple(boxes_and_classes(*shape) for shape in shapes)
    with torch.inference_mode():
        expected = decode(outputs, LIMITS)
        found = decode(tuple(output.to(GPU) for output in outputs), LIMITS)
    assert any(map(len, expected))
    for mine, other in zip(found, expected, strict=True):
        assert mine.boxes.device == mine.scores.device == mine.labels.device == GPU
        torch.testing.assert_close(mine.boxes.cpu(), other.boxes)
        torch.testing.assert_close(mine.scores.cpu(), other.scores)
        assert torch.equal(mine.labels.cpu(), other.labels)
