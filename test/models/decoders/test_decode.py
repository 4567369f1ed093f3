"""The decoder of layouts against loops over every box, for the layout of each family."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from plain_boxes import Found, best_first, check_equal, corners_of, suppressed

from split_infer_ros.models.decoders.decode import LayoutDecoder
from split_infer_ros.models.decoders.layout import (
    Activation,
    Arrangement,
    Background,
    BoxEncoding,
    BoxRange,
    OutputLayout,
    Part,
    PerBox,
    Suppression,
)
from split_infer_ros.models.decoders.selection import CANDIDATES_PER_DETECTION
from split_infer_ros.models.detections import Detections, Limits

HEIGHT, WIDTH, CLASSES, IMAGES, COUNT = 64, 96, 3, 3, 126
LIMITS = [Limits(0.5, 0.4, 50), Limits(0.05, 0.7, 300), Limits(0.8, 0.1, 5), Limits(0.9999, 0.5, 10)]
NUMBERS = ("numbers",)
Array = npt.NDArray[Any]


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).random(shape, np.float32)


def centres(count: int = COUNT) -> Array:
    """Centres all over the input and sizes of 8 to 40 pixels, which overlap often: (IMAGES, count, 4)."""
    return drawn(IMAGES, count, 4) * np.array([WIDTH, HEIGHT, 32, 32], np.float32) + np.array([0, 0, 8, 8], np.float32)


def joined(*arrays: Array) -> Array:
    return np.concatenate(arrays, 2)


def decoder(layout: OutputLayout, *names: str) -> LayoutDecoder:
    return LayoutDecoder(layout, names or NUMBERS, HEIGHT, WIDTH)


def check(layout: OutputLayout, raw: Array, plain: Callable[[list[float]], Found], limits: Limits) -> None:
    """Compares with a loop that reads one box's numbers."""
    output = np.ascontiguousarray(raw.transpose(0, 2, 1)) if layout.rows is Arrangement.COLUMNS else raw
    found = decoder(layout)((output,), limits)
    keep = best_first if layout.suppression is Suppression.NONE else suppressed
    assert len(found) == IMAGES
    for detections, image in zip(found, raw.tolist(), strict=True):
        check_equal(detections, keep([plain(row) for row in image], limits))


def best_class(scores: Sequence[float]) -> tuple[float, int]:
    return max(scores), scores.index(max(scores))


def scaled(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    return box[0] * WIDTH, box[1] * HEIGHT, box[2] * WIDTH, box[3] * HEIGHT


YOLOV8 = OutputLayout("yolov8", Part(NUMBERS, 0, 4), Part(NUMBERS, 4), encoding=BoxEncoding.CENTRE_SIZE)
COLUMNS = OutputLayout(
    "yolov8", Part(NUMBERS, 0, 4), Part(NUMBERS, 4), encoding=BoxEncoding.CENTRE_SIZE, rows=Arrangement.COLUMNS
)
YOLOV5 = OutputLayout(
    "yolov5",
    Part(NUMBERS, 0, 4),
    Part(NUMBERS, 5),
    objectness=Part(NUMBERS, 4, 5),
    encoding=BoxEncoding.CENTRE_SIZE,
)
SELECTED = OutputLayout(
    "end_to_end",
    Part(NUMBERS, 0, 4),
    Part(NUMBERS, 4, 5),
    labels=Part(NUMBERS, 5, 6),
    suppression=Suppression.NONE,
)
QUERIES = {
    "encoding": BoxEncoding.CENTRE_SIZE,
    "range": BoxRange.UNIT,
    "suppression": Suppression.NONE,
}
DETR = OutputLayout(
    "detr", Part(("boxes",)), Part(("logits",)), activation=Activation.SIGMOID, per_box=PerBox.ALL, **QUERIES
)  # type: ignore[arg-type]
SOFTMAX = OutputLayout(
    "detr_softmax",
    Part(("boxes",)),
    Part(("logits",)),
    activation=Activation.SOFTMAX,
    background=Background.LAST,
    **QUERIES,  # type: ignore[arg-type]
)
RTDETR = OutputLayout("rtdetr", Part(NUMBERS, 0, 4), Part(NUMBERS, 4), **QUERIES)  # type: ignore[arg-type]
PARTS = {"boxes": Part(("boxes",)), "scores": Part(("scores",)), "labels": Part(("labels",))}
TRIPLE = OutputLayout("torchvision", **PARTS, suppression=Suppression.NONE)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", [YOLOV8, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("limits", LIMITS)
def test_scores_of_classes_equal_loops(layout: OutputLayout, limits: Limits) -> None:
    rows = joined(centres(), drawn(IMAGES, COUNT, CLASSES, seed=1))
    check(layout, rows, lambda row: (corners_of(*row[:4]), *best_class(row[4:])), limits)


@pytest.mark.parametrize("limits", LIMITS)
def test_objectness_multiplies_scores(limits: Limits) -> None:
    rows = joined(centres(), drawn(IMAGES, COUNT, 1, seed=2) ** np.float32(0.2), drawn(IMAGES, COUNT, CLASSES, seed=1))

    def plain(row: list[float]) -> Found:
        score, label = best_class(row[5:])
        return corners_of(*row[:4]), row[4] * score, label

    check(YOLOV5, rows, plain, limits)


@pytest.mark.parametrize("limits", LIMITS)
def test_selected_boxes_do_not_suppress_each_other(limits: Limits) -> None:
    """Two equal boxes of a class stay, and only the threshold and the number count."""
    boxes = centres(40)
    labels = np.broadcast_to(np.arange(40, dtype=np.float32) % CLASSES, (IMAGES, 40))[..., None]
    raw = joined(boxes[..., :2], boxes[..., :2] + boxes[..., 2:], drawn(IMAGES, 40, 1, seed=3), labels)
    raw[:, 1] = raw[:, 0]
    check(SELECTED, raw, lambda row: ((row[0], row[1], row[2], row[3]), row[4], int(row[5])), limits)


@pytest.mark.parametrize(("spread", "limits", "is_enough"), [
    (1.0, Limits(0.05, 0.4, 4), True),
    (0.02, Limits(0.05, 0.1, 30), False),
])  # fmt: skip
def test_the_rest_is_read_if_the_best_suppress_each_other(spread: float, limits: Limits, is_enough: bool) -> None:
    """Boxes close together suppress most others, so that the best ones are not enough. Scores repeat."""
    scores = np.round(drawn(IMAGES, COUNT, CLASSES, seed=1) * 8) / 8
    rows = joined(centres() * np.array([spread, spread, 1, 1], np.float32), scores)
    assert CANDIDATES_PER_DETECTION * limits.max_detections < COUNT
    found = decoder(YOLOV8)((rows,), limits)
    for detections, image in zip(found, rows.tolist(), strict=True):
        assert (len(detections) == limits.max_detections) == is_enough
        check_equal(detections, suppressed([(corners_of(*row[:4]), *best_class(row[4:])) for row in image], limits))


def test_boxes_of_all_classes_may_suppress_each_other() -> None:
    layout = OutputLayout("declared", Part(NUMBERS, 0, 4), Part(NUMBERS, 4), suppression=Suppression.ALL)
    raw = np.array([[[0, 0, 10, 10, 0.9, 0], [0, 0, 10, 9, 0, 0.8], [50, 0, 60, 9, 0, 0.7]]], np.float32)
    (found,) = decoder(layout)((raw,), Limits(0.5, 0.5))
    assert found.labels.tolist() == [0, 1]
    assert found.boxes[1].tolist() == [50, 0, 60, 9]


@pytest.mark.parametrize("limits", [*LIMITS, Limits(0.0, 0.5, 3), Limits(0.1, 0.5, 20)])
def test_sigmoid_queries_give_the_best_pairs(limits: Limits) -> None:
    """All pairs of a query and a class compete, and an image has at most as many detections as queries."""
    boxes, logits = drawn(IMAGES, 40, 4), 6 * drawn(IMAGES, 40, CLASSES, seed=1) - 3
    found = decoder(DETR, "logits", "boxes")((logits, boxes), limits)
    again = decoder(DETR, "boxes", "logits")((boxes, logits), limits)
    for detections, other, image, rows in zip(found, again, boxes.tolist(), logits.tolist(), strict=True):
        pairs: list[Found] = [
            (scaled(corners_of(*box)), 1 / (1 + math.exp(-logit)), label)
            for box, row in zip(image, rows, strict=True)
            for label, logit in enumerate(row)
        ]
        few = Limits(limits.score_threshold, 0.5, min(limits.max_detections, 40))
        check_equal(detections, best_first(pairs, few))
        assert np.array_equal(detections.boxes, other.boxes)
    if limits.max_detections == 20:  # a query may have several classes
        assert any(len(set(map(tuple, each.boxes.tolist()))) < len(each) for each in found)


@pytest.mark.parametrize("place", [Background.FIRST, Background.LAST])
@pytest.mark.parametrize("limits", LIMITS)
def test_softmax_leaves_out_the_background(limits: Limits, place: Background) -> None:
    boxes, logits = drawn(IMAGES, 40, 4), 6 * drawn(IMAGES, 40, CLASSES, seed=1) - 3
    layout = OutputLayout(
        "declared", DETR.boxes, DETR.scores, activation=Activation.SOFTMAX, background=place, **QUERIES
    )  # type: ignore[arg-type]  # fmt: skip
    found = decoder(layout, "boxes", "logits")((boxes, logits), limits)
    for detections, image, rows in zip(found, boxes.tolist(), logits.tolist(), strict=True):
        expected: list[Found] = []
        for box, row in zip(image, rows, strict=True):
            total = sum(math.exp(logit) for logit in row)
            best, label = best_class(row[1:] if place is Background.FIRST else row[:-1])
            expected.append((scaled(corners_of(*box)), math.exp(best) / total, label))
        check_equal(detections, best_first(expected, limits))


@pytest.mark.parametrize("limits", LIMITS)
def test_unit_queries_have_their_best_class(limits: Limits) -> None:
    raw = joined(drawn(IMAGES, 40, 4), drawn(IMAGES, 40, CLASSES, seed=2))
    check(RTDETR, raw, lambda row: (scaled(corners_of(*row[:4])), *best_class(row[4:])), limits)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32])
@pytest.mark.parametrize("batched", [True, False])
def test_three_outputs_are_read_in_the_files_order(batched: bool, dtype: npt.DTypeLike) -> None:
    labels = np.broadcast_to(np.arange(40) % CLASSES, (IMAGES, 40)).astype(dtype)
    boxes, scores = drawn(IMAGES, 40, 4) * 50, drawn(IMAGES, 40, seed=2)
    boxes[..., 2:] += boxes[..., :2]
    outputs = (labels, scores, boxes) if batched else (labels[0], scores[0], boxes[0])
    found = decoder(TRIPLE, "labels", "scores", "boxes")(outputs, Limits(0.3))
    assert len(found) == (IMAGES if batched else 1)
    for index, detections in enumerate(found):
        rows = zip(boxes[index].tolist(), scores[index].tolist(), labels[index].tolist(), strict=True)
        expected: list[Found] = [((box[0], box[1], box[2], box[3]), score, int(label)) for box, score, label in rows]
        check_equal(detections, best_first(expected, Limits(0.3)))


@pytest.mark.parametrize("shape", [(IMAGES,), (IMAGES, 1)])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_boxes_beyond_their_number_do_not_count(shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
    layout = OutputLayout("counted", **PARTS, counts=Part(("n",)), suppression=Suppression.NONE)  # type: ignore[arg-type]
    outputs = {
        "n": np.array([2, 0, 9]).astype(dtype).reshape(shape),
        "boxes": np.tile(np.array([1, 2, 30, 40], np.float32), (IMAGES, 4, 1)),
        "scores": np.full((IMAGES, 4), 0.9, np.float32),
        "labels": np.zeros((IMAGES, 4), np.int32),
    }
    found = decoder(layout, *outputs)(tuple(outputs.values()), Limits())
    assert list(map(len, found)) == [2, 0, 4]


@pytest.mark.parametrize("number", [-3, math.nan, math.inf])
def test_an_impossible_number_of_boxes_is_none(number: float) -> None:
    layout = OutputLayout("counted", **PARTS, counts=Part(("n",)), suppression=Suppression.NONE)  # type: ignore[arg-type]
    outputs = (np.ones((1, 4, 4), np.float32), np.ones((1, 4), np.float32), np.zeros((1, 4)), np.array([[number]]))
    (found,) = decoder(layout, "boxes", "scores", "labels", "n")(outputs, Limits())
    assert len(found) == 0


@pytest.mark.parametrize("columns", [7, 6])
@pytest.mark.parametrize("is_stacked", [True, False])
def test_padding_with_zeros_is_no_box(columns: int, is_stacked: bool) -> None:
    """Boxes of several images that ran one by one are stacked, (N, k, numbers), and zeros fill the shorter ones."""
    first = columns - 6
    layout = OutputLayout(
        "yolov7",
        Part(NUMBERS, first, first + 4),
        Part(NUMBERS, first + 5, first + 6),
        labels=Part(NUMBERS, first + 4, first + 5),
        suppression=Suppression.NONE,
    )
    rows = np.array([[0] * first + [10, 20, 30, 40, 2, 0.9], [0] * first + [1, 2, 3, 4, 1, 0.8]], np.float32)
    stacked = np.stack((rows, rows * np.array([[1], [0]], np.float32)))
    found = decoder(layout)((stacked if is_stacked else rows,), Limits(0.0))
    assert [each.labels.tolist() for each in found] == ([[2, 1], [2]] if is_stacked else [[2, 1]])
    assert found[0].boxes.tolist() == [[10, 20, 30, 40], [1, 2, 3, 4]]


def test_maps_of_several_levels_follow_each_other() -> None:
    """A box lies in one cell of one map, whose numbers are its channels."""
    layout = OutputLayout("declared", Part(("a", "b"), 0, 4), Part(("a", "b"), 4), rows=Arrangement.MAPS)
    maps = [np.zeros((1, 6, height, height), np.float32) for height in (4, 2)]
    maps[0][0, :, 3, 2] = (1, 2, 30, 40, 0.1, 0.9)
    maps[1][0, :, 0, 1] = (5, 6, 70, 80, 0.8, 0.3)
    (found,) = decoder(layout, "b", "a")((maps[1], maps[0]), Limits(0.5))
    assert found.boxes.tolist() == [[1, 2, 30, 40], [5, 6, 70, 80]]
    assert found.labels.tolist() == [1, 0]


@pytest.mark.parametrize(("activation", "threshold"), [(Activation.NONE, 0.4), (Activation.SOFTMAX, 0.4)])
def test_a_classifier_covers_the_input(activation: Activation, threshold: float) -> None:
    """A score that equals the threshold is kept, unlike a detector's."""
    layout = OutputLayout("classifier", None, Part(NUMBERS), activation=activation, per_box=PerBox.ALL)
    values = np.array([[0.2, 0.4, 0.4], [0.9, 0.1, 0.0]], np.float32)
    if activation is Activation.SOFTMAX:
        values = np.log(np.maximum(values, 1e-9))
    for shaped in (values, values[..., None, None]):
        first, second = decoder(layout)((shaped,), Limits(threshold - 1e-6))
        assert first.labels.tolist() == [1, 2]
        assert second.labels.tolist() == [0]
        assert first.boxes.tolist() == [[0, 0, WIDTH, HEIGHT]] * 2
    exact = OutputLayout("classifier", None, Part(NUMBERS), per_box=PerBox.ALL)
    (kept,) = decoder(exact)((np.array([[0.25, 0.5]], np.float32),), Limits(0.5))
    assert kept.labels.tolist() == [1]


def test_classes_are_whole_but_for_rounding() -> None:
    """1.9999 is 2. What is no whole number is no class, which is counted as unknown later."""
    raw = np.zeros((1, 5, 6), np.float32)
    raw[0, :, 4], raw[0, :, 5] = (0.9, 0.8, 0.7, 0.6, 0.55), (1.9999, 1.5, math.nan, 1e30, 2.001)
    raw[0, :, 2:4] = 20
    (found,) = decoder(SELECTED)((raw,), Limits())
    assert found.labels.tolist() == [2, -1, -1, -1, 2]


def test_classes_may_count_from_one() -> None:
    layout = OutputLayout("counted", **PARTS, first_class=1, suppression=Suppression.NONE)  # type: ignore[arg-type]
    outputs = (np.ones((1, 2, 4), np.float32), np.ones((1, 2), np.float32), np.array([[1.0, 3.0]], np.float32))
    (found,) = decoder(layout, "boxes", "scores", "labels")(outputs, Limits())
    assert found.labels.tolist() == [0, 2]


def test_ties_keep_the_order_of_boxes() -> None:
    raw = np.zeros((1, 6, 6), np.float32)
    raw[0, :, 4] = (0.6, math.nan, 0.9, 0.6, 0.2, 0.9)
    raw[0, :, :4], raw[0, :, 5] = np.arange(24).reshape(6, 4), range(6)
    (found,) = decoder(SELECTED)((raw,), Limits())
    assert found.labels.tolist() == [2, 5, 0, 3]
    assert found.boxes[0].tolist() == [8, 9, 10, 11]


EVERY = [
    (YOLOV8, ((2, COUNT, 7),)),
    (COLUMNS, ((2, 7, COUNT),)),
    (YOLOV5, ((2, COUNT, 8),)),
    (SELECTED, ((2, 20, 6),)),
    (RTDETR, ((2, 20, 7),)),
    (DETR, ((2, 20, 4), (2, 20, 3))),
    (SOFTMAX, ((2, 20, 4), (2, 20, 4))),
    (TRIPLE, ((2, 20, 4), (2, 20), (2, 20))),
]
IDS = ["rows", "columns", "objectness", "selected", "unit", "sigmoid", "softmax", "triple"]


def names_of(layout: OutputLayout) -> tuple[str, ...]:
    return {DETR: ("boxes", "logits"), SOFTMAX: ("boxes", "logits"), TRIPLE: ("boxes", "scores", "labels")}.get(
        layout, NUMBERS
    )


@pytest.mark.parametrize(("layout", "shapes"), EVERY, ids=IDS)
def test_images_without_objects_give_empty_detections(
    layout: OutputLayout, shapes: tuple[tuple[int, ...], ...]
) -> None:
    outputs = [np.full(shape, -9 if layout.activation is Activation.SIGMOID else 0, np.float32) for shape in shapes]
    if layout.activation is Activation.SOFTMAX:
        outputs[1][..., -1] = 20
    for detections in decoder(layout, *names_of(layout))(outputs, Limits()):
        assert detections.boxes.shape == (0, 4)
        assert detections.boxes.dtype == detections.scores.dtype == np.float32
        assert detections.labels.dtype == np.int64


@pytest.mark.parametrize(("layout", "shapes"), EVERY, ids=IDS)
def test_outputs_without_any_box_give_empty_detections(
    layout: OutputLayout, shapes: tuple[tuple[int, ...], ...]
) -> None:
    along = 2 if layout.rows is Arrangement.COLUMNS else 1
    outputs = [np.zeros((*shape[:along], 0, *shape[along + 1 :]), np.float32) for shape in shapes]
    assert [len(each) for each in decoder(layout, *names_of(layout))(outputs, Limits())] == [0, 0]


@pytest.mark.parametrize(("layout", "shapes"), EVERY, ids=IDS)
def test_nan_is_no_detection(layout: OutputLayout, shapes: tuple[tuple[int, ...], ...]) -> None:
    outputs = [drawn(*shape, seed=5) for shape in shapes]
    for output in outputs:
        output[0] = np.nan
    empty, filled = decoder(layout, *names_of(layout))(outputs, Limits(0.3))
    assert len(empty) == 0
    assert len(filled) > 0


@pytest.mark.parametrize(("layout", "shapes"), EVERY, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_and_arrays_are_read_alike(
    layout: OutputLayout, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype
) -> None:
    """Numbers of 16 bits become float32 before anything is computed, so the results have the same bits."""
    tensors = [torch.from_numpy(drawn(*shape, seed=6)).to(dtype) for shape in shapes]
    decode = decoder(layout, *names_of(layout))
    wide = decode([tensor.float().numpy() for tensor in tensors], Limits(0.3))
    found = [decode(tensors, Limits(0.3))]
    if dtype is torch.float16:
        found.append(decode([tensor.numpy() for tensor in tensors], Limits(0.3)))
    for others in found:
        for mine, other in zip(wide, others, strict=True):
            assert len(mine) > 0
            assert other.boxes.dtype == other.scores.dtype == np.float32
            assert np.array_equal(mine.boxes, other.boxes)
            assert np.array_equal(mine.scores, other.scores)
            assert np.array_equal(mine.labels, other.labels)


@pytest.mark.parametrize(("layout", "shapes"), EVERY, ids=IDS)
def test_detections_own_their_memory(layout: OutputLayout, shapes: tuple[tuple[int, ...], ...]) -> None:
    """The next batch overwrites the outputs, while detections are still published."""
    outputs = [drawn(*shape, seed=7) for shape in shapes]
    found: list[Detections] = decoder(layout, *names_of(layout))(outputs, Limits(0.3))
    before = [(each.boxes.copy(), each.scores.copy(), each.labels.copy()) for each in found]
    for output in outputs:
        output.fill(0)
    for each, (boxes, scores, labels) in zip(found, before, strict=True):
        assert len(each) > 0
        assert np.array_equal(each.boxes, boxes)
        assert np.array_equal(each.scores, scores)
        assert np.array_equal(each.labels, labels)


@pytest.mark.parametrize("limits", [Limits(0.0, 0.5, 0), Limits(1.0), Limits(0.5, 0.0, 1), Limits(0.0, 1.0, 10**6)])
@pytest.mark.parametrize(("layout", "shapes"), EVERY, ids=IDS)
def test_extreme_limits_hold(layout: OutputLayout, shapes: tuple[tuple[int, ...], ...], limits: Limits) -> None:
    outputs = [drawn(*shape, seed=8) for shape in shapes]
    for each in decoder(layout, *names_of(layout))(outputs, limits):
        assert len(each) <= limits.max_detections
        assert (each.scores > limits.score_threshold).all()


def test_an_output_that_the_model_lacks_is_named() -> None:
    with pytest.raises(KeyError, match="numbers"):
        LayoutDecoder(YOLOV8, ["other"], HEIGHT, WIDTH)
