"""Decoders of outputs on the simulated GPU: they bring the outputs to the host, and find what they find there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from simulated_gpu import GPU, Gpu
from torch import Tensor

from split_infer_ros.models.decoders.decode import LayoutDecoder
from split_infer_ros.models.decoders.layout import (
    Activation,
    Arrangement,
    BoxEncoding,
    BoxRange,
    Grid,
    OutputLayout,
    Part,
    PerBox,
    Suppression,
)
from split_infer_ros.models.detections import Limits

pytestmark = pytest.mark.usefixtures("plain_operators")

HEIGHT, WIDTH, CLASSES, QUERIES = 64, 96, 3, 40
CELLS = 126  # of strides 8, 16 and 32
LIMITS = Limits(score_threshold=0.3, max_detections=20)
ALL, PAIR = ("all",), ("boxes", "logits")

YOLOV8 = OutputLayout("", Part(ALL, 0, 4), Part(ALL, 4), rows=Arrangement.COLUMNS, encoding=BoxEncoding.CENTRE_SIZE)
YOLOX = OutputLayout(
    "", Part(ALL, 0, 4), Part(ALL, 5), objectness=Part(ALL, 4, 5), encoding=BoxEncoding.CELLS, grid=Grid((8, 16, 32))
)
NANODET = OutputLayout("", Part(ALL, CLASSES), Part(ALL, 0, CLASSES), encoding=BoxEncoding.DISTRIBUTIONS)
SELECTED = OutputLayout("", Part(ALL, 0, 4), Part(ALL, 4, 5), Part(ALL, 5, 6), suppression=Suppression.NONE)
DETR = OutputLayout(
    "",
    Part(("boxes",)),
    Part(("logits",)),
    encoding=BoxEncoding.CENTRE_SIZE,
    range=BoxRange.UNIT,
    activation=Activation.SIGMOID,
    per_box=PerBox.ALL,
    suppression=Suppression.NONE,
)


def drawn(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize(
    ("layout", "names", "shapes"),
    [
        (YOLOV8, ALL, ((2, 4 + CLASSES, CELLS),)),
        (YOLOX, ALL, ((2, CELLS, 5 + CLASSES),)),
        (NANODET, ALL, ((2, CELLS, CLASSES + 32),)),
        (SELECTED, ALL, ((2, QUERIES, 6),)),
        (DETR, PAIR, ((2, QUERIES, 4), (2, QUERIES, CLASSES))),
    ],
    ids=["yolov8", "yolox", "nanodet", "selected", "detr"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_outputs_on_a_gpu_give_detections_of_the_host(
    layout: OutputLayout, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, gpu: Gpu
) -> None:
    decode = LayoutDecoder(layout, names, HEIGHT, WIDTH)
    outputs = tuple(drawn(*shape).to(dtype) for shape in shapes)
    with torch.inference_mode():
        expected = decode(outputs, LIMITS)
        found = decode(tuple(output.to(GPU) for output in outputs), LIMITS)
    assert any(map(len, expected))
    for mine, other in zip(found, expected, strict=True):
        assert np.array_equal(mine.boxes, other.boxes)  # the same numbers take the same road
        assert np.array_equal(mine.scores, other.scores)
        assert np.array_equal(mine.labels, other.labels)
