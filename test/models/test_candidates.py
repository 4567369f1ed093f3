from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_gpu import GPU, Gpu
from torch import Tensor
from torchvision.ops import batched_nms

from split_infer_ros.models.candidates import Candidates, SuppressOverlaps, suppress, suppress_all
from split_infer_ros.models.detections import Detections, Limits

BOXES = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]])


def suppress_by_torchvision(boxes: Tensor, scores: Tensor, labels: Tensor, limits: Limits) -> Detections:
    """The detections of one image as torchvision's detectors select them."""
    candidates = (scores > limits.score_threshold).nonzero().flatten()
    kept = candidates[batched_nms(boxes[candidates], scores[candidates], labels[candidates], limits.nms_threshold)]
    kept = kept[: limits.max_detections]
    return Detections(boxes[kept], scores[kept], labels[kept])


def check(found: Detections, expected: Detections) -> None:
    """Both are equal to the last bit, because boxes and scores are selected, not computed."""
    for name in ("boxes", "scores", "labels"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


@settings(max_examples=60)
@given(
    images=st.integers(1, 4),
    count=st.integers(0, 60),
    classes=st.integers(1, 5),
    threshold=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    overlap=st.sampled_from([0.0, 0.4, 1.0]),
    max_detections=st.integers(1, 80),
    seed=st.integers(0, 10_000),
)
def test_a_batch_equals_torchvision_image_by_image(
    images: int, count: int, classes: int, threshold: float, overlap: float, max_detections: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    corners = 40 * torch.rand(images, count, 2, generator=generator)
    boxes = torch.cat((corners, corners + 1 + 20 * torch.rand(images, count, 2, generator=generator)), 2)
    scores = torch.rand(images, count, classes, generator=generator)
    limits = Limits(threshold, overlap, max_detections)
    labels = torch.arange(classes).repeat(count)
    for image, found in enumerate(suppress(Candidates(boxes, scores), limits)):
        repeated = boxes[image].repeat_interleave(classes, 0)
        check(found, suppress_by_torchvision(repeated, scores[image].flatten(), labels, limits))
    drawn = torch.randint(classes, (images, count), generator=generator)
    for image, found in enumerate(suppress_all((scores[..., 0], boxes, drawn), limits)):
        check(found, suppress_by_torchvision(boxes[image], scores[image, :, 0], drawn[image], limits))


def test_only_the_best_of_a_class_take_part() -> None:
    scores = torch.tensor([[[0.9, 0.0], [0.8, 0.6], [0.7, 0.5]]])
    (found,) = suppress(Candidates(BOXES[None], scores, max_per_class=1), Limits(0.0))
    assert found.labels.tolist() == [0, 1]
    (found,) = suppress(Candidates(BOXES[None], scores, max_per_class=2), Limits(0.0, 0.95))
    assert sorted(found.labels.tolist()) == [0, 0, 1, 1]


def test_without_candidates_there_are_no_detections() -> None:
    empty = torch.zeros(2, 0), torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.int64)
    for found in suppress_all(empty, Limits(0.0)):
        check(found, Detections.empty())
    for found in suppress(Candidates(torch.zeros(2, 0, 4), torch.zeros(2, 0, 7), max_per_class=3), Limits(0.0)):
        check(found, Detections.empty())


def test_the_candidates_function_is_made_once_when_needed() -> None:
    made: list[int] = []

    def make():  # type: ignore[no-untyped-def]
        made.append(1)
        return lambda outputs: Candidates(BOXES[None], outputs[0])

    decode = SuppressOverlaps(make)
    assert made == []
    for _ in range(2):
        (found,) = decode((torch.tensor([[[0.9], [0.8], [0.7]]]),), Limits())
        assert found.scores.tolist() == pytest.approx([0.9, 0.7])
    assert made == [1]


@pytest.mark.usefixtures("plain_operators")
@pytest.mark.parametrize("has_labels", [True, False])
def test_the_host_waits_for_a_batch_of_a_gpu_as_for_an_image(
    has_labels: bool, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes, scores = BOXES.expand(3, 3, 4), torch.tensor([[0.9, 0.8, 0.7], [0.7, 0.1, 0.6], [0.1, 0.1, 0.1]])
    of_each_class = torch.stack([scores, scores / 2], 2)
    candidates = (boxes, scores, torch.tensor([[0, 0, 1]]).expand(3, 3)) if has_labels else (boxes, of_each_class)
    waits = 0
    wait = gpu.wait

    def count(*arguments: object) -> None:
        nonlocal waits
        waits += 1
        wait(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(gpu, "wait", count)
    seen = []
    for images in (1, 3):
        given = Candidates(*(part[:images].contiguous() for part in candidates))
        before = waits
        found = suppress(Candidates(*(part.to(GPU) for part in given[: len(candidates)])), Limits(0.3))
        seen.append(waits - before)
        for one, expected in zip(found, suppress(given, Limits(0.3)), strict=True):
            check(one, expected)
    assert seen[0] == seen[1] > 0
