"""What the numbers of boxes mean: every encoding against a loop over single boxes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from split_infer_ros.models.decoders.decode import LayoutDecoder
from split_infer_ros.models.decoders.encodings import ENCODINGS, BoxGeometry, is_unit, numbers_of_box, softmax
from split_infer_ros.models.decoders.grids import cells
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

HEIGHT, WIDTH, STRIDES, BINS, OFFSET = 48, 64, (8, 16), 5, 0.5
COUNT = 60  # cells of both maps
ANCHORS = np.random.default_rng(9).uniform(1, 30, (COUNT, 4)).astype(np.float32)
VARIANCES = (0.1, 0.2)
PLACES, SIDES = cells(HEIGHT, WIDTH, STRIDES)
GRID = Grid(offset=OFFSET, bins=BINS, variances=VARIANCES)
GEOMETRY = BoxGeometry(HEIGHT, WIDTH, BoxRange.PIXELS, GRID, PLACES, SIDES, ANCHORS)
Box = tuple[float, float, float, float]


def cell(place: int) -> tuple[int, int, int]:
    """Column, row and stride of a cell."""
    for stride in STRIDES:
        columns, rows = math.ceil(WIDTH / stride), math.ceil(HEIGHT / stride)
        if place < columns * rows:
            return place % columns, place // columns, stride
        place -= columns * rows
    raise AssertionError


def around(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def of_cells(numbers: list[float], place: int) -> Box:
    column, row, stride = cell(place)
    x, y = (numbers[0] + column + OFFSET) * stride, (numbers[1] + row + OFFSET) * stride
    return around(x, y, math.exp(numbers[2]) * stride, math.exp(numbers[3]) * stride)


def of_distances(numbers: list[float], place: int) -> Box:
    column, row, stride = cell(place)
    x, y = column + OFFSET, row + OFFSET
    return (
        (x - numbers[0]) * stride,
        (y - numbers[1]) * stride,
        (x + numbers[2]) * stride,
        (y + numbers[3]) * stride,
    )


def of_distributions(numbers: list[float], place: int) -> Box:
    means = []
    for side in range(4):
        powers = [math.exp(number) for number in numbers[side * BINS : (side + 1) * BINS]]
        means.append(sum(power * distance for distance, power in enumerate(powers)) / sum(powers))
    return of_distances(means, place)


def of_anchors(numbers: list[float], place: int) -> Box:
    x, y, width, height = ANCHORS[place].tolist()
    return around(
        x + numbers[0] * VARIANCES[0] * width,
        y + numbers[1] * VARIANCES[0] * height,
        width * math.exp(numbers[2] * VARIANCES[1]),
        height * math.exp(numbers[3] * VARIANCES[1]),
    )


def of_sizes(numbers: list[float], place: int) -> Box:
    column, row, stride = cell(place)
    return around((column + numbers[2]) * stride, (row + numbers[3]) * stride, numbers[0] * stride, numbers[1] * stride)


PLAIN: dict[BoxEncoding, Callable[[list[float], int], Box]] = {
    BoxEncoding.CORNERS: lambda n, _: (n[0], n[1], n[2], n[3]),
    BoxEncoding.CORNERS_YX: lambda n, _: (n[1], n[0], n[3], n[2]),
    BoxEncoding.CENTRE_SIZE: lambda n, _: around(n[0], n[1], n[2], n[3]),
    BoxEncoding.CORNER_SIZE: lambda n, _: (n[0], n[1], n[0] + n[2], n[1] + n[3]),
    BoxEncoding.CELLS: of_cells,
    BoxEncoding.DISTANCES: of_distances,
    BoxEncoding.DISTRIBUTIONS: of_distributions,
    BoxEncoding.ANCHORS: of_anchors,
    BoxEncoding.SIZES: of_sizes,
}


def layout_of(encoding: BoxEncoding, **more: Any) -> OutputLayout:
    return OutputLayout("", Part(("b",)), Part(("s",)), encoding=encoding, grid=Grid(STRIDES, OFFSET, BINS), **more)


def test_every_encoding_has_a_loop() -> None:
    assert PLAIN.keys() == ENCODINGS.keys() == set(BoxEncoding)


@settings(max_examples=20)
@given(data=st.data())
@pytest.mark.parametrize("encoding", BoxEncoding)
def test_corners_equal_loops(encoding: BoxEncoding, data: st.DataObject) -> None:
    """A few operations in float32 on numbers below 30, and boxes below 1,000 pixels: 1e-2 pixels is enough."""
    places = np.array(data.draw(st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=9)), np.int64)
    columns = 4 if encoding is BoxEncoding.SIZES else numbers_of_box(layout_of(encoding))
    elements = st.floats(-3, 3, width=32)
    numbers = data.draw(hnp.arrays(np.float32, (len(places), columns), elements=elements))
    found = ENCODINGS[encoding](numbers, places, GEOMETRY)
    expected = [PLAIN[encoding](row, place) for row, place in zip(numbers.tolist(), places.tolist(), strict=True)]
    np.testing.assert_allclose(found, np.array(expected), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    "encoding", [BoxEncoding.CORNERS, BoxEncoding.CORNERS_YX, BoxEncoding.CENTRE_SIZE, BoxEncoding.CORNER_SIZE]
)
def test_boxes_in_0_to_1_are_scaled_to_the_input(encoding: BoxEncoding) -> None:
    numbers, place = np.array([[0.25, 0.5, 0.5, 0.75]], np.float32), np.zeros(1, np.int64)
    plain = PLAIN[encoding](numbers[0].tolist(), 0)
    expected = [plain[0] * WIDTH, plain[1] * HEIGHT, plain[2] * WIDTH, plain[3] * HEIGHT]
    for scale in (BoxRange.UNIT, BoxRange.AUTO):
        found = ENCODINGS[encoding](numbers, place, replace(GEOMETRY, range=scale))
        np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    assert ENCODINGS[encoding](numbers, place, GEOMETRY)[0].tolist() == pytest.approx(list(plain))


def test_a_box_that_lies_far_out_is_in_pixels() -> None:
    assert is_unit(np.array([[0, 0, 1.2, 1]], np.float32))
    assert not is_unit(np.array([[0, 0, 0.9, 1], [0, 0, 3, 2]], np.float32))
    assert not is_unit(np.zeros((0, 4), np.float32))
    assert is_unit(np.array([[0, math.nan, math.inf, 1]], np.float32))  # the finite ones tell


def test_huge_logarithms_stay_finite() -> None:
    for encoding in (BoxEncoding.CELLS, BoxEncoding.ANCHORS):
        found = ENCODINGS[encoding](np.full((1, 4), 1e4, np.float32), np.zeros(1, np.int64), GEOMETRY)
        assert np.isfinite(found).all()
    spread = softmax(np.array([[1e30, -1e30, 1e30]], np.float32), 1)
    assert spread.tolist() == [[0.5, 0, 0.5]]


@pytest.mark.parametrize(("encoding", "numbers"), [
    (BoxEncoding.CORNERS, 4), (BoxEncoding.DISTRIBUTIONS, 4 * BINS), (BoxEncoding.SIZES, 2), (BoxEncoding.ANCHORS, 4)
])  # fmt: skip
def test_a_box_has_as_many_numbers_as_its_encoding(encoding: BoxEncoding, numbers: int) -> None:
    assert numbers_of_box(layout_of(encoding)) == numbers


def test_nanodet_boxes_lie_around_their_cells() -> None:
    """A distribution that is sure of two cells on each side makes a box of four cells."""
    layout = OutputLayout(
        "nanodet", Part(("o",), 2), Part(("o",), 0, 2), encoding=BoxEncoding.DISTRIBUTIONS, grid=Grid((8, 16, 32, 64))
    )
    output = np.zeros((1, 85, 34), np.float32)
    spread = np.full((4, 8), -50, np.float32)
    spread[:, 2] = 50
    output[0, 8 + 3] = (0, 0.9, *spread.ravel())  # column 3, row 1 of the first map
    (found,) = LayoutDecoder(layout, ["o"], 64, 64)((output,), Limits())
    assert found.labels.tolist() == [1]
    np.testing.assert_allclose(found.boxes, [[24 - 16, 8 - 16, 24 + 16, 8 + 16]], atol=1e-3)


def test_ssd_anchors_come_from_a_file(tmp_path: Any) -> None:
    np.save(tmp_path / "anchors.npy", np.array([[0.5, 0.5, 0.2, 0.4], [0.1, 0.1, 0.1, 0.1]], np.float32))
    layout = OutputLayout(
        "declared",
        Part(("b",)),
        Part(("s",)),
        encoding=BoxEncoding.ANCHORS,
        range=BoxRange.UNIT,
        grid=Grid(anchors=str(tmp_path / "anchors.npy")),
    )
    boxes = np.array([[[1, -1, math.log(2) / 0.2, 0], [0, 0, 0, 0]]], np.float32)
    (found,) = LayoutDecoder(layout, ["b", "s"], 100, 200)((boxes, np.array([[[0.9], [0.1]]], np.float32)), Limits())
    # The centre moves by a tenth of the anchor's sides, and the width doubles.
    np.testing.assert_allclose(found.boxes, [[(0.52 - 0.2) * 200, (0.46 - 0.2) * 100, 144, 66]], atol=1e-3)


@pytest.mark.parametrize("has_distances", [True, False])
@pytest.mark.parametrize("activation", [Activation.NONE, Activation.SIGMOID])
def test_peaks_of_heat_maps_equal_loops(has_distances: bool, activation: Activation) -> None:
    random = np.random.default_rng(4)
    rows, columns, classes = 12, 16, 3
    heat = np.round(random.random((classes, rows, columns)) * 20).astype(np.float32) / 20  # with plateaus
    sizes, distances = (random.uniform(0.5, 4, (2, rows, columns)).astype(np.float32) for _ in range(2))
    layout = OutputLayout(
        "centernet",
        Part(("wh",)),
        Part(("hm",)),
        centres=Part(("reg",)) if has_distances else None,
        rows=Arrangement.MAPS,
        encoding=BoxEncoding.SIZES,
        grid=Grid((4,), 0.0 if has_distances else 0.5),
        activation=activation,
        per_box=PerBox.ALL,
        suppression=Suppression.NONE,
        peaks=True,
    )
    given = heat if activation is Activation.NONE else np.log(np.maximum(heat, 1e-6) / np.maximum(1 - heat, 1e-6))
    outputs = (given[None].astype(np.float32), sizes[None], distances[None])
    (found,) = LayoutDecoder(layout, ["hm", "wh", "reg"], 48, 64)(outputs, Limits(0.72, 0.5, 1000))
    expected = set()
    for label in range(classes):
        for y in range(rows):
            for x in range(columns):
                around_it = heat[label, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
                if heat[label, y, x] > 0.72 and heat[label, y, x] == around_it.max():
                    dx, dy = distances[:, y, x] if has_distances else (0.5, 0.5)
                    box = around((x + dx) * 4, (y + dy) * 4, sizes[0, y, x] * 4, sizes[1, y, x] * 4)
                    expected.add((label, *(round(float(side), 2) for side in box)))
    boxes = found.boxes.astype(np.float64)
    assert len(found) == len(expected) > 20
    want = np.array(sorted(expected))
    have = np.column_stack((found.labels, boxes))
    order = np.lexsort(np.round(have, 2).T[::-1])
    np.testing.assert_allclose(have[order], want, atol=2e-2)
    assert (found.scores[:-1] >= found.scores[1:]).all()
