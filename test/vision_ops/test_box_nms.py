from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from expected_boxes import check_kept, kept_class_by_class
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops import batched_nms, nms

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops import suppression
from split_infer_ros.vision_ops.box_nms import box_nms


@st.composite
def detections(draw: st.DrawFn, classes: bool) -> tuple[Tensor, Tensor, int]:
    """Boxes (N, n, 4), scores (N, n, C) or (N, n), and C; with ties, NaN, empty and inverted boxes, or no boxes."""
    images, boxes_per_image, class_count = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from([0, 1, 2, 7, 40, 150])),
        draw(st.integers(1, 5)),
    )
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    spread = draw(st.sampled_from([1, 30, 300]))
    corners = torch.rand((images, boxes_per_image, 2), generator=random) * spread
    boxes = torch.cat([corners, corners + torch.rand(corners.shape, generator=random) * 40 - 4], dim=2)
    shape = (images, boxes_per_image, class_count) if classes else (images, boxes_per_image)
    scores = torch.rand(shape, generator=random)
    if draw(st.booleans()):
        boxes = boxes.round()  # some overlaps equal the threshold
    levels = draw(st.sampled_from([None, 1, 4]))
    if levels:
        scores = (scores * levels).round() / levels
    for values, bad in ((scores, math.nan), (boxes, math.nan), (boxes, math.inf), (boxes, -math.inf)):
        if draw(st.integers(0, 3)) == 0:
            values[torch.rand(values.shape, generator=random) < 0.05] = bad
    return boxes, scores, class_count


LIMITS = st.fixed_dictionaries(
    {
        "score_threshold": st.sampled_from([-1.0, 0.0, 0.25, 0.6, 1.0]),
        "iou_threshold": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
        "max_detections": st.sampled_from([1, 3, 20, 1000]),
    }
)


@settings(max_examples=150)
@given(drawn=detections(classes=False), seed=st.integers(0, 99), limits=LIMITS)
def test_labelled_boxes_are_kept_as_class_by_class(
    drawn: tuple[Tensor, Tensor, int], seed: int, limits: dict[str, Any]
) -> None:
    boxes, scores, classes = drawn
    labels = torch.randint(-1, classes, scores.shape, generator=torch.Generator().manual_seed(seed))
    found = box_nms(boxes, scores, labels, **limits)
    assert found.shape == (len(boxes), limits["max_detections"])
    for image, kept in enumerate(found):
        check_kept(kept, kept_class_by_class(boxes[image], scores[image], labels[image], **limits))


@settings(max_examples=30)
@given(drawn=detections(classes=False), limits=LIMITS)
def test_arrays_give_an_array(drawn: tuple[Tensor, Tensor, int], limits: dict[str, Any]) -> None:
    boxes, scores, classes = drawn
    labels = torch.arange(scores.numel()).reshape(scores.shape) % classes
    found = box_nms(boxes.numpy(), scores.numpy(), labels.numpy(), **limits)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, box_nms(boxes, scores, labels, **limits).numpy())


@settings(max_examples=150)
@given(drawn=detections(classes=True), max_per_class=st.sampled_from([None, 1, 5, 30]), limits=LIMITS)
def test_scores_of_all_classes_are_kept_as_class_by_class(
    drawn: tuple[Tensor, Tensor, int], max_per_class: int | None, limits: dict[str, Any]
) -> None:
    boxes, scores, classes = drawn
    behind_background = torch.cat([torch.ones_like(scores[..., :1]), scores], dim=2)[..., 1:]
    limits = {**limits, "max_per_class": max_per_class}
    found = box_nms(boxes, behind_background, **limits)
    for image, kept in enumerate(found):
        labels = torch.arange(classes).repeat(boxes.shape[1])
        repeated = boxes[image].repeat_interleave(classes, 0)
        check_kept(kept, kept_class_by_class(repeated, scores[image].flatten(), labels, **limits))


@settings(max_examples=50)
@given(drawn=detections(classes=False), limits=LIMITS)
def test_boxes_of_one_class_are_kept_as_by_nms(drawn: tuple[Tensor, Tensor, int], limits: dict[str, Any]) -> None:
    boxes, scores, _ = drawn
    found = box_nms(boxes, scores, **limits)
    for image, kept in enumerate(found):
        check_kept(kept, kept_class_by_class(boxes[image], scores[image], torch.zeros(scores.shape[1]), **limits))


def test_a_threshold_is_not_rounded() -> None:
    boxes = torch.tensor([[[0.0, 0, 10, 1], [0, 0, 3, 1], [0, 0, 10, 1], [0, 0, 3, 1]]])
    scores, labels = torch.tensor([[0.9, 0.8, 0.7, 0.6]]), torch.tensor([[0, 0, 1, 1]])
    assert nms(boxes[0, :2], scores[0, :2], 0.3).tolist() == [0]  # float32 rounds three tenths up
    found = box_nms(boxes, scores, labels, score_threshold=0.1, iou_threshold=0.3, max_detections=3)
    assert found.tolist() == [[0, 2, -1]]


@pytest.mark.parametrize("images", [1, 2])
def test_scores_of_16_bits_meet_the_exact_threshold(images: int) -> None:
    scores = torch.tensor([[0.3, 0.29]], dtype=torch.float16).repeat(images, 1)
    assert scores[0, 0].item() > 0.3  # but not above the threshold as float16 rounds it
    boxes = torch.tensor([[[0, 0, 1, 1], [5, 5, 6, 6]]], dtype=torch.float16).repeat(images, 1, 1)
    found = box_nms(boxes, scores, score_threshold=0.3, iou_threshold=0.5, max_detections=2)
    assert found.tolist() == [[0, -1]] * images


@pytest.mark.parametrize("types", [(torch.float64, torch.float64), (torch.float64, torch.float32)])
def test_numbers_of_64_bits_are_not_rounded(types: tuple[torch.dtype, torch.dtype]) -> None:
    boxes = torch.tensor([[[0, 0, 10, 10], [0, 0, 10, 5 + 1e-9], [50, 50, 60, 60]]], dtype=types[0])
    scores = torch.tensor([[0.5, 0.6, 0.7]], dtype=types[1])
    for iou_threshold, kept in ((0.5, [2, 1, -1]), (0.5 + 1e-9, [2, 1, 0])):
        found = box_nms(boxes, scores, score_threshold=0.1, iou_threshold=iou_threshold, max_detections=3)
        assert found.tolist() == [kept]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_on_a_grid_batched_nms_keeps_the_same(dtype: torch.dtype) -> None:
    # On a grid, torchvision's offsets between classes round nothing.
    random = torch.Generator().manual_seed(0)
    corners = torch.randint(0, 100, (1, 500, 2), generator=random)
    boxes = torch.cat([corners, corners + torch.randint(1, 40, corners.shape, generator=random)], dim=2).to(dtype)
    scores = (torch.randperm(500, generator=random) / 512).unsqueeze(0).to(dtype)
    labels = torch.randint(0, 8, (1, 500), generator=random)
    found = box_nms(boxes, scores, labels, score_threshold=-1, iou_threshold=0.5, max_detections=500)
    check_kept(found[0], batched_nms(boxes[0].float(), scores[0].float(), labels[0], 0.5))


@pytest.mark.parametrize("count", [63, 64, 65, 1000, 8400])
@pytest.mark.parametrize("side", [40, 4000], ids=["heavily overlapping", "spread"])
def test_large_groups_are_kept_as_by_nms_to_the_end(count: int, side: int) -> None:
    """All boxes are asked for, so that none is left out for being late."""
    random = torch.Generator().manual_seed(count)
    corners = torch.rand((1, count, 2), generator=random) * side
    boxes = torch.cat([corners, corners + 20 + torch.rand(corners.shape, generator=random) * 20], dim=2)
    scores = torch.rand((1, count), generator=random)
    found = box_nms(boxes, scores, score_threshold=-1.0, iou_threshold=0.5, max_detections=count)
    check_kept(found[0], nms(boxes[0], scores[0], 0.5))


@pytest.mark.parametrize("side", [40, 4000], ids=["heavily overlapping", "spread"])
def test_a_hundred_thousand_boxes_are_suppressed(side: int) -> None:
    random = torch.Generator().manual_seed(side)
    corners = torch.rand((1, 100_000, 2), generator=random) * side
    boxes = torch.cat([corners, corners + 20 + torch.rand(corners.shape, generator=random) * 20], dim=2)
    scores, labels = torch.rand((1, 100_000), generator=random), torch.randint(0, 4, (1, 100_000), generator=random)
    found = box_nms(boxes, scores, labels, score_threshold=0.1, iou_threshold=0.3, max_detections=30)
    best = scores[0].topk(20_000).indices.sort().values  # more than enough, and much faster than all of them
    limits = {"score_threshold": 0.1, "iou_threshold": 0.3, "max_detections": 30}
    expected = best[kept_class_by_class(boxes[0, best], scores[0, best], labels[0, best], **limits)]
    check_kept(found[0], expected)
    assert len(expected) == 30


def test_images_that_lack_boxes_are_searched_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    monkeypatch.setattr(suppression, "MAX_PAIRS_AT_ONCE", 20_000)
    corners = torch.rand((4, 1000, 2), generator=random) * 10
    boxes = torch.cat([corners, corners + 200], dim=2)
    scores = torch.rand((4, 1000, 12), generator=random)
    limits = {"score_threshold": 0.1, "iou_threshold": 0.5, "max_detections": 50, "max_per_class": 300}
    found = box_nms(boxes, scores[..., 1:], **limits)
    assert ((found >= 0).sum(1) == 11).all()  # one of each class
    labels, repeated = torch.arange(11).repeat(1000), boxes.repeat_interleave(11, 1)
    for image, kept in enumerate(found):
        check_kept(kept, kept_class_by_class(repeated[image], scores[image, :, 1:].flatten(), labels, **limits))


def test_small_groups_are_compared_like_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    corners = random.random((600, 2), np.float32) * 50
    boxes = np.hstack([corners, corners + random.random((600, 2), np.float32) * 30])
    labels, images = random.integers(0, 10, 600), np.arange(3).repeat(200)
    found = []
    for pairwise, sequential, groups in ((0, 0, 1), (1000, 0, 2048), (1000, 10**9, 4)):
        monkeypatch.setattr(suppression, "MAX_GROUPS_AT_ONCE", groups)
        monkeypatch.setattr(suppression, "MAX_PAIRWISE", pairwise)
        monkeypatch.setattr(suppression, "MAX_SEQUENTIAL", sequential)
        found.append(suppression.unsuppressed(boxes, images, labels, iou_threshold=0.4).tolist())
    assert found[0] == found[1] == found[2]
    assert 10 < sum(found[0]) < 590


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (2, 0, 3), (2, 5, 0), (0, 0)])
def test_without_candidates_all_results_are_invalid(shape: tuple[int, ...]) -> None:
    found = box_nms(
        torch.zeros((*shape[:2], 4)), torch.zeros(shape), score_threshold=0, iou_threshold=0.5, max_detections=3
    )
    assert found.tolist() == [[-1] * 3] * shape[0]


def test_max_detections_can_be_0() -> None:
    found = box_nms(torch.rand(2, 5, 4), torch.rand(2, 5), score_threshold=0, iou_threshold=0.5, max_detections=0)
    assert found.shape == (2, 0)


@pytest.mark.parametrize(
    ("shapes", "limits", "message"),
    [
        (((2, 5, 4), (2, 6), None), {}, r"boxes \(2, 5, 4\) and scores \(2, 6\) do not fit"),
        (((2, 5, 5), (2, 5), None), {}, r"boxes are \(N, n, 4\)"),
        (((5, 4), (5,), None), {}, r"scores \(5,\) do not fit"),
        (((2, 5, 4), (2, 5), (2, 4)), {}, r"labels \(2, 4\) and scores \(2, 5\) do not fit"),
        (((2, 5, 4), (2, 5, 3), (2, 5)), {}, "or a score for each class and no label"),
        (((2, 5, 4), (2, 5), None), {"iou_threshold": 1.5}, "iou_threshold is 1.5"),
        (((2, 5, 4), (2, 5), None), {"iou_threshold": math.nan}, "iou_threshold is nan"),
        (((2, 5, 4), (2, 5), None), {"max_detections": -1}, "max_detections is -1"),
        (((2, 5, 4), (2, 5), None), {"max_per_class": 0}, "max_per_class is 0"),
        (((2, 5, 4), (2, 5), (2, 5)), {"max_per_class": 3}, "only for scores of all classes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None], limits: dict[str, float], message: str
) -> None:
    boxes, scores, labels = shapes
    with pytest.raises(ConfigurationError, match=message):
        box_nms(
            torch.zeros(boxes),
            torch.zeros(scores),
            None if labels is None else torch.zeros(labels, dtype=torch.int64),
            **{"score_threshold": 0.1, "iou_threshold": 0.5, "max_detections": 3, **limits},
        )
