"""Scenes keep their promises, measured on pictures, masks and boxes."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from split_infer_ros.errors import SourceError
from split_infer_ros.models import shapes
from split_infer_ros.sources import scenes
from split_infer_ros.sources.scene_layout import mask_of, place_shapes
from split_infer_ros.sources.scenes import Scene, draw_scene, scene_rng

SCENES = 250


def object_masks(seed: int, index: int, width: int = 640, height: int = 480) -> np.ndarray:
    """The pixels of each whole object of a scene, bool (n, height, width), in the order of drawing."""
    shapes = place_shapes(scene_rng(seed, index), width, height)
    return np.stack([mask_of(shape, (0, 0, width, height)) for shape in shapes])


@pytest.fixture(scope="module")
def seed() -> int:
    return 20


@pytest.fixture(scope="module")
def drawn(seed: int) -> list[Scene]:
    return [draw_scene(seed, i) for i in range(SCENES)]


@pytest.fixture(scope="module")
def masks(seed: int) -> list[np.ndarray]:
    return [object_masks(seed, i) for i in range(SCENES)]


def sides(scene: Scene) -> np.ndarray:
    return (scene.boxes[:, 2:] - scene.boxes[:, :2]).max(1)


def visible(masks: np.ndarray, i: int) -> np.ndarray:
    """The pixels of object ``i`` that no later object hides."""
    return masks[i] & ~masks[i + 1 :].any(0)


def test_a_scene_has_the_documented_shapes(drawn: list[Scene]) -> None:
    for scene in drawn[:10]:
        assert scene.image.shape == (480, 640, 3)
        assert scene.image.dtype == np.uint8
        assert scene.image.flags.c_contiguous
        assert scene.boxes.dtype == np.float32
        assert scene.boxes.shape == (len(scene.labels), 4)
        assert scene.labels.dtype == np.int64


def test_the_same_arguments_give_the_same_scene(drawn: list[Scene], seed: int) -> None:
    again = draw_scene(seed, 3)
    assert (again.image == drawn[3].image).all()
    assert (again.boxes == drawn[3].boxes).all()


@pytest.mark.parametrize(("seed", "index"), [(5, 1), (6, 0), (5 + 2**32, 0), (5 + 2**62, 0)])
def test_other_arguments_give_another_scene(seed: int, index: int) -> None:
    assert (draw_scene(5, 0).image != draw_scene(seed, index).image).any()


def test_seed_and_index_are_not_one_long_number() -> None:
    assert (draw_scene(5, 1).image != draw_scene(5 + 2**32, 0).image).any()


def test_three_to_twelve_objects_of_every_class(drawn: list[Scene]) -> None:
    counts = {len(scene.labels) for scene in drawn}
    assert min(counts) >= 3
    assert max(counts) <= 12
    assert len(counts) >= 8
    shares = np.bincount(np.concatenate([scene.labels for scene in drawn])) / sum(len(s.labels) for s in drawn)
    assert len(shares) == len(scenes.LABELS)
    assert shares.min() > 0.25


def test_at_least_a_fifth_of_the_objects_are_small(drawn: list[Scene]) -> None:
    longest = np.concatenate([sides(scene) for scene in drawn])
    assert longest.min() >= 11.99
    assert longest.max() <= 120.01
    assert (longest <= 24).mean() >= 0.2


def test_a_quarter_of_scenes_have_one_overlapping_pair(drawn: list[Scene]) -> None:
    num_pairs = 0
    for scene in drawn:
        boxes = torch.from_numpy(scene.boxes)
        overlap = box_iou(boxes, boxes).triu(1)
        pairs = overlap[overlap > 0]
        assert len(pairs) <= 1
        assert ((pairs >= 0.1) & (pairs <= 0.4)).all()
        num_pairs += len(pairs)
    assert num_pairs / len(drawn) >= 0.25


def test_every_box_is_the_tight_box_of_the_whole_object(drawn: list[Scene], masks: list[np.ndarray]) -> None:
    differences = []
    for scene, objects in zip(drawn, masks, strict=True):
        for box, mask in zip(scene.boxes, objects, strict=True):
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            differences.append(box - [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
    assert np.abs(differences).max() < 1
    assert np.abs(np.mean(differences, 0)).max() < 0.15  # no class is drawn too large or too small


def test_at_least_half_of_every_object_is_visible(masks: list[np.ndarray]) -> None:
    shares = [visible(m, i).sum() / m[i].sum() for m in masks for i in range(len(m))]
    assert min(shares) >= 0.5
    assert min(shares) < 0.75  # some are partly hidden


def test_contrast_begins_at_the_promised_value(drawn: list[Scene], masks: list[np.ndarray]) -> None:
    contrasts = []
    for scene, m in zip(drawn, masks, strict=True):
        luma = scene.image @ np.array([0.299, 0.587, 0.114]) / 255
        free = ~cv2.dilate(m.any(0).astype(np.uint8), np.ones((3, 3), np.uint8)).astype(bool)
        for i in range(len(m)):
            ring = cv2.dilate(m[i].astype(np.uint8), np.ones((9, 9), np.uint8)).astype(bool) & free
            inside = cv2.erode(visible(m, i).astype(np.uint8), np.ones((3, 3), np.uint8)).astype(bool)
            if ring.any():  # a small object can lie completely on a larger one
                contrasts.append(abs(luma[inside].mean() - luma[ring].mean()))
    assert min(contrasts) >= 0.15
    assert min(contrasts) < 0.2
    assert max(contrasts) > 0.5


def test_noise_reaches_up_to_the_promised_sigma(drawn: list[Scene]) -> None:
    # The second difference of white noise of sigma s has sigma sqrt(6) s. Its median magnitude ignores edges.
    sigmas = []
    for scene in drawn[:80]:
        grey = scene.image[..., 1].astype(float)
        sigmas.append(np.median(np.abs(np.diff(grey, 2, axis=1))) / 0.6745 / 6**0.5 / 255)
    assert max(sigmas) <= 0.055
    assert max(sigmas) > 0.04
    assert min(sigmas) < 0.01


def test_light_differs_between_and_within_scenes(drawn: list[Scene]) -> None:
    brightness = np.array([scene.image.mean() for scene in drawn]) / 255
    assert brightness.std() > 0.1
    corners = np.array([[s.image[:80, :80].mean(), s.image[-80:, -80:].mean()] for s in drawn]) / 255
    assert (np.abs(corners[:, 0] - corners[:, 1]) > 0.05).mean() > 0.15


def test_squares_are_rotated(drawn: list[Scene], masks: list[np.ndarray]) -> None:
    """An upright square fills its box, and one rotated by 45 degrees fills half of it."""
    fill = np.array(
        [
            mask.sum() / np.prod(box[2:] - box[:2])
            for scene, m in zip(drawn, masks, strict=True)
            for box, mask, label in zip(scene.boxes, m, scene.labels, strict=True)
            if label == scenes.LABELS.index("square") and box[2] - box[0] > 24
        ]
    )
    assert fill.min() < 0.6
    assert fill.max() > 0.9


@pytest.mark.parametrize(("width", "height", "scale"), [(1280, 960, 2.0), (320, 240, 0.5), (64, 48, 0.1)])
def test_other_sizes_scale_the_objects(width: int, height: int, scale: float) -> None:
    for index in range(10):
        scene = draw_scene(1, index, width=width, height=height)
        assert scene.image.shape == (height, width, 3)
        assert len(scene.labels) >= 3
        assert (sides(scene) >= 12 * scale - 0.01).all()
        assert (sides(scene) <= 120 * scale + 0.01).all()
        assert (scene.boxes >= 0).all()
        assert (scene.boxes <= [width, height, width, height]).all()


@pytest.mark.parametrize(
    ("seed", "width", "height", "named"), [(0, 63, 48, "63x48"), (0, 64, 47, "64x47"), (-1, 640, 480, "-1")]
)
def test_a_scene_that_cannot_be_drawn_is_refused(seed: int, width: int, height: int, named: str) -> None:
    with pytest.raises(SourceError, match=named):
        draw_scene(seed, 0, width=width, height=height)


def test_the_detector_knows_the_same_classes() -> None:
    assert shapes.LABELS == scenes.LABELS
