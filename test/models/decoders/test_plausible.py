"""Whether numbers can be what a layout says: one case for each that they cannot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("onnx")

from onnx_files import Shape, hollow

from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.layout import (
    Activation,
    Background,
    BoxEncoding,
    BoxRange,
    Grid,
    OutputLayout,
    Part,
)
from split_infer_ros.models.decoders.plausible import is_plausible

SIZE = 64
BOXES = [[1, 2, 30, 40], [5, 6, 7, 8]]
SCORES = [[0.1, 0.9], [0.2, 0.3]]


def plausible(boxes: Any, scores: Any, *, labels: Any = None, classes: int | None = None, **more: Any) -> bool:
    """Asks for one image's boxes, scores and perhaps labels."""
    given = {"b": boxes, "s": scores} | ({} if labels is None else {"l": labels})
    trial: dict[str, npt.NDArray[np.float32]] = {name: np.array([each], np.float32) for name, each in given.items()}
    if labels is not None:
        more["labels"] = Part(("l",))
    layout = OutputLayout("", Part(("b",)), Part(("s",)), **more)
    shapes: dict[str, Shape] = {name: each.shape for name, each in trial.items()}
    return is_plausible(layout, OutputFacts(hollow(shapes), SIZE, SIZE, classes, trial))


def test_boxes_and_scores_of_a_detector_are_plausible() -> None:
    assert plausible(BOXES, SCORES)
    assert plausible(np.zeros((0, 4)), np.zeros((0, 2)))
    assert plausible(BOXES, [[-1e-4, 1.0001], [0, 1]])  # rounding
    assert plausible([[1, 2, 1 - 1e-4, 4], [5, 6, 7, 8]], SCORES)


@pytest.mark.parametrize("scores", [[[0.1, 1.5], [0, 0]], [[-0.2, 0.1], [0, 0]], [[math.nan, 0], [0, 0]]])
def test_scores_lie_in_0_to_1(scores: list[list[float]]) -> None:
    assert not plausible(BOXES, scores)


def test_numbers_that_are_probabilities_need_no_sigmoid() -> None:
    assert not plausible(BOXES, SCORES, activation=Activation.SIGMOID)
    assert plausible(BOXES, [[-3, 2], [-4, -5]], activation=Activation.SIGMOID)
    assert plausible(BOXES, np.zeros((2, 2)), activation=Activation.SIGMOID)  # of a network that finds nothing


def test_scores_with_a_background_sum_to_one() -> None:
    assert not plausible(BOXES, SCORES, background=Background.FIRST)
    assert plausible(BOXES, [[0.1, 0.9], [0.7, 0.3]], background=Background.FIRST)


@pytest.mark.parametrize("labels", [[0, 0.5], [0, math.nan], [-1, 0]])
def test_classes_are_whole_numbers(labels: list[float]) -> None:
    assert not plausible(BOXES, [0.5, 0.5], labels=labels)
    assert plausible(BOXES, [0.5, 0.0], labels=[0, 0.5])  # nobody reads the class of padding
    assert plausible(BOXES, [0.5, 0.5], labels=[1.9999, 0])


def test_a_class_without_a_name_is_implausible() -> None:
    assert plausible(BOXES, [0.5, 0.5], labels=[1, 2], classes=3)
    assert not plausible(BOXES, [0.5, 0.5], labels=[1, 4], classes=3)  # one more may be the background
    assert plausible(BOXES, [0.5, 0.5], labels=[1, 3], classes=3, first_class=1)


@pytest.mark.parametrize(
    ("box", "encoding"),
    [
        ([30, 2, 3, 40], BoxEncoding.CORNERS),
        ([1, 20, 30, 4], BoxEncoding.CORNERS_YX),
        ([30, 30, -2, 4], BoxEncoding.CENTRE_SIZE),
        ([30, 30, 2, -4], BoxEncoding.CORNER_SIZE),
        ([1, 2, 30, math.inf], BoxEncoding.CORNERS),
        ([1, 2, 300, 40], BoxEncoding.CORNERS),  # more than four times the input
        ([0, 0, 0.5, 9], BoxEncoding.CELLS),  # the logarithm of 8,000 cells
    ],
)
def test_a_box_that_no_network_gives_is_implausible(box: list[float], encoding: BoxEncoding) -> None:
    assert not plausible([box, [5, 6, 7, 8]], SCORES, encoding=encoding, grid=Grid((8,)))


def test_boxes_have_their_scale() -> None:
    unit = [[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1]]
    assert not plausible(unit, SCORES)
    assert not plausible(BOXES, SCORES, range=BoxRange.UNIT)
    for boxes in (unit, BOXES):
        assert plausible(boxes, SCORES, range=BoxRange.AUTO)
    assert plausible(np.zeros((2, 4)), SCORES)  # of a network that finds nothing


def test_without_a_trial_everything_is_plausible() -> None:
    layout = OutputLayout("", Part(("b",)), Part(("s",)))
    graph = hollow({"b": (1, 2, 4), "s": (1, 2, 2)})
    assert is_plausible(layout, OutputFacts(graph, SIZE, SIZE, None))
