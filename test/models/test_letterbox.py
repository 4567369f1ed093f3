"""Letterboxes: where the image lies, what surrounds it, and that it equals what exporters do."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from photographs import photographs

from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.models.letterbox import Letterbox
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.recipe import Recipe
from split_infer_ros.models.recipe_words import Geometry, ShortForm

pytestmark = pytest.mark.numeric

GREY = 114
RECIPES = [each.value for each in (*Geometry, *ShortForm)]
SIZES = st.tuples(st.integers(1, 600), st.integers(1, 600))


def run(preprocess: Preprocess, image: np.ndarray) -> np.ndarray:
    return preprocess.normalise(preprocess.gather([Pixels(image, RGB)], preprocess.staging(1)))[0]


def of_size(height: int, width: int) -> np.ndarray:
    """A photograph of any size."""
    return cv2.resize(photographs()[0], (width, height), interpolation=cv2.INTER_AREA)


def centred_by_opencv(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """What Ultralytics' documentation describes: the smaller ratio, rounded, half of the padding on each side."""
    ratio = min(height / image.shape[0], width / image.shape[1])
    fit_height, fit_width = max(round(image.shape[0] * ratio), 1), max(round(image.shape[1] * ratio), 1)
    if (fit_height, fit_width) != image.shape[:2]:
        image = cv2.resize(image, (fit_width, fit_height), interpolation=cv2.INTER_LINEAR)
    top, left = round((height - fit_height) / 2 - 0.1), round((width - fit_width) / 2 - 0.1)
    borders = (top, height - fit_height - top, left, width - fit_width - left)
    return cv2.copyMakeBorder(image, *borders, cv2.BORDER_CONSTANT, value=(GREY,) * 3)


@settings(max_examples=25)
@given(size=SIZES, target=st.sampled_from([(64, 64), (48, 64), (64, 47), (161, 31)]))
def test_centred_letterbox_equals_the_exporters(size: tuple[int, int], target: tuple[int, int]) -> None:
    """Both call OpenCV's resize, so the grey values are the same. Scaling to 0..1 rounds once: 1e-6."""
    image = of_size(*size)
    expected = centred_by_opencv(image, *target)
    ours = run(Recipe.parse("letterbox").preprocess(*target), image)
    np.testing.assert_allclose(ours, expected.transpose(2, 0, 1) / 255, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(480, 640), (640, 480), (100, 333), (37, 41), (1, 50)])
def test_yolox_input_equals_its_exporters(size: tuple[int, int]) -> None:
    """Top left, grey around it, 0..255, blue first. The grey values come from the same call of OpenCV."""
    image = of_size(*size)
    ratio = min(96 / size[0], 64 / size[1])
    fit_height, fit_width = max(int(size[0] * ratio + 1e-9), 1), max(int(size[1] * ratio + 1e-9), 1)
    expected = np.full((96, 64, 3), GREY, dtype=np.uint8)
    expected[:fit_height, :fit_width] = cv2.resize(image[..., ::-1].copy(), (fit_width, fit_height))
    ours = run(Recipe.parse("yolox").preprocess(96, 64), image)
    np.testing.assert_allclose(ours, expected.transpose(2, 0, 1), rtol=0, atol=1e-4)


def test_every_recipe_fills_the_input() -> None:
    """A white image has one colour wherever it lies, so nothing of the buffer's old content is left."""
    white = np.full((40, 90, 3), 255, dtype=np.uint8)
    for recipe in RECIPES:
        preprocess = Recipe.parse(recipe).preprocess(32, 48)
        staging = preprocess.staging(1)
        staging.fill(7)
        preprocess.gather([Pixels(white, RGB)], staging)
        assert not (staging == 7).any(), recipe
        assert (staging == 255).any(), recipe


def test_recipes_scale_as_their_exporters_do() -> None:
    white = np.full((32, 32, 3), 255, dtype=np.uint8)
    highest = {recipe: float(run(Recipe.parse(recipe).preprocess(32, 32), white).max()) for recipe in RECIPES}
    assert highest.pop("yolox") == pytest.approx(255)
    for recipe in ("stretch_imagenet", "crop_imagenet"):
        assert highest.pop(recipe) == pytest.approx((1 - 0.406) / 0.225)
    assert list(highest.values()) == pytest.approx([1.0] * len(highest))


def test_opencvs_rounding_differs_by_one_level_at_most() -> None:
    """A GPU interpolates as float and rounds. OpenCV computes in fixed point with 11 bits, and may round otherwise."""
    image = of_size(479, 301)
    preprocess = Preprocess(64, 96, opencv=True)
    rounded = torch.from_numpy(preprocess.gather([Pixels(image, RGB)], preprocess.staging(1)))[0].float()
    planes = torch.from_numpy(image)[None].permute(0, 3, 1, 2).float()
    planes = torch.nn.functional.interpolate(planes, size=(64, 96), mode="bilinear")
    difference = (planes.round()[0].permute(1, 2, 0) - rounded).abs()
    assert difference.max() <= 1
    assert rounded.std() > 10  # the photograph is seen


@settings(max_examples=60)
@given(size=SIZES, centred=st.booleans(), corner=st.tuples(st.floats(0, 0.9), st.floats(0, 0.9)))
def test_boxes_come_back_from_a_letterbox(size: tuple[int, int], centred: bool, corner: tuple[float, float]) -> None:
    """A box of the source is mapped to the input by the fit and the padding, and back by ``to_source``.

    Both are a scale and an offset in float32, so a box comes back within 1e-3 of the image's longer side.
    """
    height, width = size
    box = Letterbox(64, 96, centred=centred)
    preprocess = Preprocess(64, 96, letterbox=box)
    fit_height, fit_width = box.fit(height, width)
    assert fit_height <= 64
    assert fit_width <= 96
    assert fit_height == 64 or fit_width == 96  # it touches two sides
    top, left = ((64 - fit_height) // 2, (96 - fit_width) // 2) if centred else (0, 0)
    source = np.array([corner[0] * width, corner[1] * height, width, height])
    scale = np.array([fit_width / width, fit_height / height] * 2)
    shown = (source * scale + np.array([left, top] * 2)).astype(np.float32)
    back = preprocess.to_source(shown[None], height, width)[0]
    np.testing.assert_allclose(back, source, rtol=0, atol=1e-3 * max(size))


def test_padded_rows_do_not_change_the_input() -> None:
    """Images of messages may have padded rows and be read-only."""
    image = of_size(50, 33)
    padded = np.full((50, 33 * 3 + 5), 99, dtype=np.uint8)
    padded[:, : 33 * 3] = image.reshape(50, -1)
    padded.flags.writeable = False
    view = padded[:, : 33 * 3].reshape(50, 33, 3)
    assert np.shares_memory(view, padded)
    preprocess = Recipe.parse("letterbox").preprocess(64, 64)
    assert np.array_equal(run(preprocess, view), run(preprocess, image))  # the same calls on the same grey values
