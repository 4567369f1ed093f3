from __future__ import annotations

import math
import secrets
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from split_infer_ros.models import shapes
from split_infer_ros.models.average_precision import Truth
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.evaluation import Matcher
from split_infer_ros.models.weights import load_weights
from split_infer_ros.sources.scenes import draw_scene

pytestmark = pytest.mark.numeric

CELLS = shapes.HEIGHT // shapes.STRIDE, shapes.WIDTH // shapes.STRIDE


@pytest.fixture(scope="module")
def net() -> nn.Module:
    entry = find_model("shapes")
    model = entry.build()
    load_weights(model, entry, "default")
    return model.eval().to(memory_format=torch.channels_last)


def batches(seed: int, count: int, size: int = 8) -> Iterator[tuple[Tensor, list[Truth]]]:
    for start in range(0, count, size):
        scenes = [draw_scene(seed, i) for i in range(start, min(start + size, count))]
        images = np.stack([s.image for s in scenes])
        truth = [(s.boxes, s.labels) for s in scenes]
        yield torch.from_numpy(find_model("shapes").preprocess.normalise(images)), truth


@torch.inference_mode()
def test_objects_of_unseen_scenes_are_found(net: nn.Module) -> None:
    seed = secrets.randbits(32)  # the seeds of training series are far larger
    matcher = Matcher(iou=0.5)
    for images, truth in batches(seed, 120):
        for found, (boxes, labels) in zip(shapes.decode(net(images), Limits()), truth, strict=True):
            matcher.add(found, boxes, labels)
    score = matcher.score()
    assert score.f1 >= 0.95, f"{score}, seed {seed}"


@torch.inference_mode()
def test_an_empty_scene_has_no_detections(net: nn.Module) -> None:
    grey = torch.full((1, 3, shapes.HEIGHT, shapes.WIDTH), 0.2)
    assert len(shapes.decode(net(grey), Limits())[0]) == 0


@torch.inference_mode()
def test_a_traced_network_gives_the_same_bits(net: nn.Module) -> None:
    images, _ = next(batches(1, 2))
    traced = fx.symbolic_trace(net)
    for found, expected in zip(traced(images), net(images), strict=True):
        assert torch.equal(found, expected)  # tracing keeps every operation


@torch.inference_mode()
def test_features_at_the_default_split_point_are_small(net: nn.Module) -> None:
    sizes = []
    block = net.get_submodule(shapes.DEFAULT_SPLIT_POINT)
    handle = block.register_forward_hook(lambda _m, _i, features: sizes.append(features[0].nbytes))
    net(torch.zeros(1, 3, shapes.HEIGHT, shapes.WIDTH))
    handle.remove()
    assert sizes == [192_000]


def test_the_weights_take_less_than_a_megabyte() -> None:
    assert shapes.WEIGHTS.stat().st_size < 1_000_000


# --- decode, on hand-made maps -----------------------------------------------------------------------------------


def empty(images: int = 1) -> tuple[Tensor, Tensor]:
    """Outputs without any object."""
    return torch.full((images, 3, *CELLS), -10.0), torch.zeros(images, 4, *CELLS)


def put(outputs: tuple[Tensor, Tensor], label: int, score: float, box: tuple[float, ...], image: int = 0) -> None:
    """Writes an object into the cell of its centre."""
    logits, raw = outputs
    left, top, right, bottom = (side / shapes.STRIDE for side in box)
    x, y = (left + right) / 2, (top + bottom) / 2
    row, column = int(y), int(x)
    logits[image, label, row, column] = math.log(score / (1 - score))
    raw[image, :, row, column] = torch.tensor(
        [x - column - 0.5, y - row - 0.5, math.log(right - left), math.log(bottom - top)]
    )


def test_decode_reads_box_score_and_label() -> None:
    outputs = empty()
    put(outputs, 2, 0.9, (100, 50, 130, 90))
    (found,) = shapes.decode(outputs, Limits())
    assert found.boxes.dtype == found.scores.dtype == np.float32
    assert found.labels.dtype == np.int64
    np.testing.assert_allclose(found.boxes, [[100, 50, 130, 90]], atol=1e-3, rtol=0)
    assert found.scores.tolist() == pytest.approx([0.9])
    assert found.labels.tolist() == [2]


def test_decode_separates_the_images_of_a_batch() -> None:
    outputs = empty(3)
    put(outputs, 0, 0.7, (10, 10, 40, 40), image=0)
    put(outputs, 1, 0.8, (10, 10, 40, 40), image=2)
    put(outputs, 1, 0.9, (200, 100, 240, 140), image=2)
    found = shapes.decode(outputs, Limits())
    assert [d.labels.tolist() for d in found] == [[0], [], [1, 1]]
    assert [d.scores.tolist() for d in found] == [pytest.approx([0.7]), [], pytest.approx([0.9, 0.8])]
    assert found[1].boxes.shape == (0, 4)


def test_decode_suppresses_overlaps_within_a_class() -> None:
    outputs = empty()
    put(outputs, 0, 0.9, (100, 100, 140, 140))
    put(outputs, 0, 0.8, (108, 100, 148, 140))  # IoU 2/3
    put(outputs, 1, 0.7, (100, 108, 140, 148))  # equally near, but of another class
    put(outputs, 0, 0.6, (124, 100, 164, 140))  # IoU 1/4
    (found,) = shapes.decode(outputs, Limits(nms_threshold=0.5))
    assert found.scores.tolist() == pytest.approx([0.9, 0.7, 0.6])
    (found,) = shapes.decode(outputs, Limits(nms_threshold=0.7))
    assert found.scores.tolist() == pytest.approx([0.9, 0.8, 0.7, 0.6])


def test_decode_applies_the_limits() -> None:
    outputs = empty()
    for i, score in enumerate((0.3, 0.9, 0.5, 0.7)):
        put(outputs, 0, score, (100 * i, 0, 100 * i + 40, 40))
    (found,) = shapes.decode(outputs, Limits(score_threshold=0.4, max_detections=2))
    assert found.scores.tolist() == pytest.approx([0.9, 0.7])
    (found,) = shapes.decode(outputs, Limits(score_threshold=0.4))
    assert found.scores.tolist() == pytest.approx([0.9, 0.7, 0.5])


def test_decode_clips_boxes_to_the_image() -> None:
    outputs = empty()
    put(outputs, 0, 0.9, (-20, -10, 30, 30))
    put(outputs, 0, 0.8, (600, 440, 660, 500))
    (found,) = shapes.decode(outputs, Limits())
    np.testing.assert_allclose(found.boxes, [[0, 0, 30, 30], [600, 440, 640, 480]], atol=1e-3, rtol=0)


def test_decode_accepts_a_threshold_of_zero() -> None:
    logits, raw = torch.randn(2, 3, *CELLS), torch.randn(2, 4, *CELLS)
    found = shapes.decode((logits, raw), Limits(score_threshold=0.0, max_detections=50))
    for detections in found:
        assert len(detections) == 50
        assert np.diff(detections.scores).max() <= 0
