"""Kernels that Triton interprets give what NumPy and torchvision give."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from expected_boxes import check_kept, kept_class_by_class
from interpreted_kernels import Call, interpreter

from split_infer_ros.vision_ops.candidates import keep_best_per_class

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    with interpreter() as call:
        yield call


@pytest.mark.parametrize("shape", [(1,), (64,), (65,), (3, 300), (2, 2, 9)])
def test_sums_in_stages_equal_those_of_numpy(call: Call, shape: tuple[int, ...]) -> None:
    values = torch.randint(-(10**12), 10**12, shape, generator=torch.Generator().manual_seed(0))
    found = call("prefix_sum", "sum_in_stages", values, 16)
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found, np.cumsum(values.numpy(), -1))
    floats = values.float() / 1e12
    found = call("prefix_sum", "sum_in_stages", floats, 16)
    np.testing.assert_allclose(found, np.cumsum(floats.numpy(), -1), 1e-4, 1e-5)


def test_sums_are_infinite_or_nan_from_there_on(call: Call) -> None:
    values = torch.zeros(100)
    values[[20, 70]] = torch.tensor([torch.inf, torch.nan])
    torch.testing.assert_close(call("prefix_sum", "sum_in_stages", values, 16), values.cumsum(0), equal_nan=True)


@pytest.mark.parametrize(
    "lengths", [[1], [16], [17, 0, 15], [3] * 40, [1, 100, 0, 0, 131, 2], [0, 256, 0], [255, 258, 1]], ids=str
)
@pytest.mark.parametrize("levels", [1, 4, 1000])
def test_merged_blocks_are_in_stable_order(call: Call, lengths: list[int], levels: int) -> None:
    ends = torch.tensor(lengths).cumsum(0)
    segments = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    values = torch.randint(-levels, levels, (len(segments),), generator=torch.Generator().manual_seed(levels))
    keys = (segments << 32) + values
    offsets = torch.cat([torch.tensor([0]), ends])
    room = torch.full((100,), 7)  # behind the last segment, as if more keys had been selected
    order = call("segmented_argsort", "argsort_by_merging", torch.cat([keys, room]), offsets, 16)
    np.testing.assert_array_equal(order[: len(keys)], np.lexsort((values, segments)))


@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (4, 37), (2, 100)])
def test_scores_above_the_threshold_are_selected_in_order(call: Call, shape: tuple[int, int]) -> None:
    scores = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(shape[1])) / 4
    scores[0, 0] = torch.nan
    _, places, offsets = call("selection", "select_above", scores, 0.25, 16)
    rows, expected = (scores > 0.25).nonzero().unbind(1)
    assert offsets.tolist() == [0, *(scores > 0.25).sum(1).cumsum(0).tolist()]
    assert places[: len(rows)].tolist() == expected.tolist()


def test_the_first_of_the_best_of_each_row_are_kept(call: Call) -> None:
    scores = torch.randint(-3, 4, (5, 200), generator=torch.Generator().manual_seed(0)) / 4
    scores[2], scores[3, 10:30] = -1.0, torch.nan
    found = call("selection", "keep_best", scores, 150, -0.5)
    by_class = np.where(scores > -0.5, scores, -np.inf)[..., None].astype(np.float32)
    np.testing.assert_array_equal(found, keep_best_per_class(by_class, 150)[..., 0])
    assert 0 < (found > -0.5).sum(1).max() <= 150
    assert (found[2] == -np.inf).all()


@pytest.mark.parametrize("max_per_class", [None, 9])
@pytest.mark.parametrize(("score_threshold", "iou_threshold"), [(-1.0, 0.0), (0.0, 0.3), (0.25, 1.0)])
def test_nms_on_the_device_equals_torchvisions(
    call: Call, max_per_class: int | None, score_threshold: float, iou_threshold: float
) -> None:
    # the same boxes, whatever the processor: each operation of an overlap is rounded alike, and ties go by index
    boxes, scores = tied_boxes(images=3, each=60, classes=4)
    limits: dict[str, Any] = {"score_threshold": score_threshold, "iou_threshold": iou_threshold, "max_detections": 70}
    found = call("box_nms", "nms_on_device", boxes, scores, None, max_per_class=max_per_class, **limits)
    labels = torch.arange(4).repeat(60)
    for image, kept in enumerate(found):
        repeated = boxes[image].repeat_interleave(4, 0)
        expected = kept_class_by_class(repeated, scores[image].flatten(), labels, max_per_class=max_per_class, **limits)
        check_kept(kept, expected)
        assert len(expected) > 20


def test_labelled_boxes_are_kept_as_torchvision_keeps_them(call: Call) -> None:
    boxes, scores = tied_boxes(images=2, each=300, classes=1)
    labels = torch.randint(0, 3, (2, 300), generator=torch.Generator().manual_seed(1))
    limits: dict[str, Any] = {"score_threshold": -1.0, "iou_threshold": 0.4, "max_detections": 40}
    found = call("box_nms", "nms_on_device", boxes, scores, labels, max_per_class=None, **limits)
    for image, kept in enumerate(found):
        check_kept(kept, kept_class_by_class(boxes[image], scores[image, :, 0], labels[image], **limits))
    assert (found >= 0).all(), "the last box that is wanted ends the search"


@pytest.mark.parametrize("threshold", [2.0, 0.5])
def test_images_without_candidates_have_no_boxes(call: Call, threshold: float) -> None:
    boxes, scores = torch.rand(2, 5, 4), torch.zeros(2, 5, 1)
    scores[1, 3] = 1.0
    limits = {"score_threshold": threshold, "iou_threshold": 0.5, "max_detections": 2, "max_per_class": None}
    found = call("box_nms", "nms_on_device", boxes, scores, None, **limits)
    assert found.tolist() == [[-1, -1], [-1, -1] if threshold > 1 else [3, -1]]


def tied_boxes(images: int, each: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns boxes (N, n, 4) and scores (N, n, C) with ties, NaN and infinities; boxes are inverted or empty."""
    random = torch.Generator().manual_seed(each)
    corners = torch.randint(0, 12, (images, each, 2), generator=random).float()
    boxes = torch.cat([corners, corners + torch.randint(-1, 9, corners.shape, generator=random)], dim=2)
    scores = torch.randint(-4, 12, (images, each, classes), generator=random) / 16
    scores[scores == 0] = -0.0
    for values, bad in ((boxes, torch.nan), (boxes, torch.inf), (scores, torch.nan)):
        values[torch.rand(values.shape, generator=random) < 0.02] = bad
    return boxes, scores
