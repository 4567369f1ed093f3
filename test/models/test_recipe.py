"""Recipes: what their words mean, against a slow reference, and the way of boxes there and back."""

from __future__ import annotations

import math
from random import Random

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from photographs import photographs

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.letterbox import Letterbox
from split_infer_ros.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from split_infer_ros.models.recipe import GREY, Recipe
from split_infer_ros.models.recipe_words import Geometry, Order, Range, Resizing

ZERO, ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
HEIGHT, WIDTH = 12, 16
PRESENT = {
    "letterbox": Preprocess(
        HEIGHT, WIDTH, mean=ZERO, std=ONE, letterbox=Letterbox(HEIGHT, WIDTH, centred=True, colour=GREY), opencv=True
    ),
    "letterbox_corner": Preprocess(
        HEIGHT,
        WIDTH,
        mean=ZERO,
        std=ONE,
        letterbox=Letterbox(HEIGHT, WIDTH, colour=(0.485 * 255, 0.456 * 255, 0.406 * 255)),
        antialias=False,
    ),
    "stretch": Preprocess(HEIGHT, WIDTH, mean=ZERO, std=ONE, opencv=True),
    "stretch_smooth": Preprocess(HEIGHT, WIDTH, mean=ZERO, std=ONE),
    "stretch_imagenet": Preprocess(HEIGHT, WIDTH),
    "crop": Preprocess(HEIGHT, WIDTH, mean=ZERO, std=ONE, shorter_side=16),
    "crop_imagenet": Preprocess(HEIGHT, WIDTH, shorter_side=18),
    "yolox": Preprocess(
        HEIGHT,
        WIDTH,
        mean=ZERO,
        std=(1 / 255,) * 3,
        letterbox=Letterbox(HEIGHT, WIDTH, colour=GREY),
        opencv=True,
        bgr=True,
    ),
}


def triples(least: float, most: float) -> st.SearchStrategy[tuple[float, ...]]:
    return st.tuples(*[st.floats(least, most)] * 3)


def recipes_of(range: Range) -> st.SearchStrategy[Recipe]:
    black, white = range.ends
    return st.builds(
        Recipe,
        geometry=st.sampled_from(Geometry),
        resizing=st.sampled_from(Resizing),
        order=st.sampled_from(Order),
        range=st.just(range),
        mean=st.one_of(st.just(ZERO), triples(black, white)),
        std=st.one_of(st.just(ONE), triples(0.01, white - black)),
        fill=st.one_of(st.none(), st.just(GREY), triples(0, 255)),
    )


RECIPES = (
    st.sampled_from(Range)
    .flatmap(recipes_of)
    .map(lambda recipe: recipe if recipe.geometry.is_letterbox else Recipe.parse(str(recipe)))
)
SIZES = st.tuples(st.integers(1, 50), st.integers(1, 50))


def run(recipe: Recipe, image: np.ndarray, rgb: tuple[int, int, int] = (0, 1, 2)) -> np.ndarray:
    preprocess = recipe.preprocess(HEIGHT, WIDTH)
    staging = preprocess.staging(1)
    staging.fill(77)
    return preprocess.normalise(preprocess.gather([Pixels(image, rgb)], staging))[0]


def of_size(height: int, width: int) -> np.ndarray:
    return cv2.resize(photographs()[0], (width, height), interpolation=cv2.INTER_AREA)


@pytest.mark.parametrize("name", PRESENT)
def test_old_names_keep_their_meaning(name: str) -> None:
    assert Recipe.parse(name).preprocess(HEIGHT, WIDTH) == PRESENT[name]


@given(recipe=RECIPES)
def test_a_written_recipe_is_read_as_the_same(recipe: Recipe) -> None:
    assert Recipe.parse(str(recipe)) == recipe


@given(recipe=RECIPES, random=st.randoms(use_true_random=False))
def test_words_may_come_in_any_order(recipe: Recipe, random: Random) -> None:
    words = str(recipe).split(",")
    random.shuffle(words)
    assert Recipe.parse(" , ".join(words).upper()) == recipe


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("letterbox_corner,bgr,0..255,fill=0", "letterbox_corner,unrounded,bgr,0..255,fill=0"),
        ("yolox,rgb", "letterbox_corner,opencv,rgb,0..255,fill=114"),
        ("rgb,yolox", "letterbox_corner,opencv,rgb,0..255,fill=114"),
        ("yolox,letterbox,fill=1/2/3", "letterbox,opencv,bgr,0..255,fill=1/2/3"),
        ("stretch,rgb,-1..1", "stretch,opencv,rgb,-1..1"),
        ("stretch,mean=0.485/0.456/0.406,std=0.229/0.224/0.225", "stretch,opencv,rgb,imagenet"),
        ("stretch,bgr,imagenet", "stretch,opencv,bgr,imagenet"),
        ("stretch_imagenet,bgr", "stretch,smooth,bgr,imagenet"),
        ("stretch_imagenet,0..255", "stretch,smooth,rgb,0..255"),
        ("stretch_imagenet,std=1", "stretch,smooth,rgb,0..1,mean=0.485/0.456/0.406"),
        ("yolox,mean=0.5,std=0.25", "letterbox_corner,opencv,bgr,0..1,mean=0.5,std=0.25,fill=114"),
        ("crop,0..255,mean=128,std=64", "crop,smooth,rgb,0..255,mean=128,std=64"),
        ("stretch,0..255,mean=127.5,std=127.5", "stretch,opencv,rgb,0..255,mean=127.5,std=127.5"),
        ("stretch,-1..1,mean=-1,std=2", "stretch,opencv,rgb,-1..1,mean=-1,std=2"),
        ("crop_imagenet,bicubic", "crop_resized,bicubic,rgb,imagenet"),
        ("stretch_smooth,letterbox", "letterbox,smooth,rgb,0..1,fill=114"),
    ],
)
def test_words_replace_what_a_short_form_means(text: str, canonical: str) -> None:
    assert str(Recipe.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("yolo", "has the unknown word 'yolo'"),
        ("", "has an empty word"),
        ("letterbox,,rgb", "has an empty word"),
        ("rgb,0..1", "does not say where the image lies"),
        ("letterbox,stretch", "says 'letterbox' and 'stretch', of which only one is possible"),
        ("yolox,stretch_smooth", "says 'yolox' and 'stretch_smooth'"),
        ("letterbox,rgb,bgr", "says 'rgb' and 'bgr'"),
        ("letterbox,mean=1,mean=1", "says 'mean=1' and 'mean=1'"),
        ("letterbox,imagenet,std=1", "says 'imagenet' and 'std=1'"),
        ("letterbox,imagenet,0..1", "says 'imagenet' and '0..1'"),
        ("stretch,fill=0", "says 'fill=0', but stretch leaves nothing to be filled"),
        ("letterbox,fill=256", "says 'fill=256', where one number from 0 to 255"),
        ("letterbox,fill=nan", "says 'fill=nan'"),
        ("letterbox,std=0", "says 'std=0', where one number from 1e-06"),
        ("letterbox,mean=1/2", "says 'mean=1/2', where one number .* or three with /"),
        ("letterbox,mean=1e99", "says 'mean=1e99'"),
        ("letterbox,mean=", "says 'mean='"),
        ("letterbox,mean=__import__('os')", "says 'mean=__import__"),
        ("letterbox," * 999, "has 9,990 characters, and at most 400"),
    ],
)
def test_words_that_mean_nothing_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"preprocessing '.*' {reason}.*; it takes auto, or words with commas"):
        Recipe.parse(text)


@pytest.mark.parametrize(
    ("text", "word", "range"),
    [
        ("stretch,mean=127.5,std=127.5", "mean=127.5", "0..1"),
        ("stretch,std=127.5", "std=127.5", "0..1"),
        ("yolox,mean=103/116/123", "mean=103/116/123", "0..1"),
        ("stretch,0..1,mean=0.5/0.5/1.5", "mean=0.5/0.5/1.5", "0..1"),
        ("stretch_imagenet,mean=-0.1", "mean=-0.1", "0..1"),
        ("stretch,-1..1,mean=-2", "mean=-2", "-1..1"),
        ("stretch,-1..1,std=3", "std=3", "-1..1"),
        ("stretch,0..255,mean=300", "mean=300", "0..255"),
    ],
)
def test_a_mean_or_std_off_its_range_is_refused(text: str, word: str, range: str) -> None:
    """All images would be nearly the same."""
    with pytest.raises(ConfigurationError, match=f"says '{word}', which values in {range} cannot have; .* 0..255"):
        Recipe.parse(text)


@settings(max_examples=60)
@given(recipe=RECIPES, size=SIZES, source_is_bgr=st.booleans())
def test_a_recipe_equals_a_slow_reference(recipe: Recipe, size: tuple[int, int], source_is_bgr: bool) -> None:
    """Grey values may differ by one: torch and OpenCV interpolate in fixed point. The rest is float32's rounding.

    The smoothed ones are compared where nothing is smoothed, which is in enlarged images, and bicubic ones are not.
    """
    image = of_size(*size)
    expected, inside = reference(recipe, image)
    found = run(recipe, image[..., ::-1].copy() if source_is_bgr else image, (2, 1, 0) if source_is_bgr else (0, 1, 2))
    std = np.array(recipe.std)[:, None, None]
    allowed = recipe.range.line[0] / 255 / std * np.where(inside, 1.01, 0.51) + 1e-4 * (1 + np.abs(expected))
    is_compared = recipe.resizing in (Resizing.OPENCV, Resizing.UNROUNDED)
    assert found.shape == expected.shape
    compared = np.ones_like(inside) if is_compared else ~inside
    assert (np.abs(found - expected) <= allowed)[:, compared].all()


def reference(recipe: Recipe, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pre-processes pixel by pixel in float64. Returns (3, h, w), and which pixels (h, w) show the image."""
    rows, columns, top, left = placed(recipe, *image.shape[:2])
    skipped = [max(0, side - 8 * min(image.shape[:2])) // 2 for side in image.shape[:2]]
    if not recipe.geometry.is_letterbox and recipe.geometry is not Geometry.STRETCH:
        image = image[skipped[0] : image.shape[0] - skipped[0], skipped[1] : image.shape[1] - skipped[1]]
    shown = bilinear(image, rows, columns)
    fill = np.array(colour_of(recipe))
    canvas, inside = np.empty((HEIGHT, WIDTH, 3)), np.zeros((HEIGHT, WIDTH), bool)
    for row in range(HEIGHT):
        for column in range(WIDTH):
            y, x = row + top, column + left
            inside[row, column] = 0 <= y < rows and 0 <= x < columns
            pixel = shown[y, x] if inside[row, column] else fill
            canvas[row, column] = pixel[::-1] if inside[row, column] and recipe.order is Order.BGR else pixel
    factor, offset = recipe.range.line
    return ((canvas / 255 * factor + offset - recipe.mean) / recipe.std).transpose(2, 0, 1), inside


def colour_of(recipe: Recipe) -> tuple[float, ...]:
    """The colour of the padding in the order of the channels."""
    if recipe.fill is not None:
        return recipe.fill
    factor, offset = recipe.range.line
    if recipe.mean == ZERO:
        colour = [255 * mean for mean in IMAGENET_MEAN]
        return tuple(colour if recipe.order is Order.RGB else colour[::-1])
    return tuple(min(max((mean - offset) / factor * 255, 0), 255) for mean in recipe.mean)


def placed(recipe: Recipe, height: int, width: int) -> tuple[int, int, int, int]:
    """The size to which the image is resized, and where the input's top left corner lies in it."""
    geometry = recipe.geometry
    if geometry is Geometry.STRETCH:
        return HEIGHT, WIDTH, 0, 0
    if geometry is Geometry.LETTERBOX:
        ratio = min(HEIGHT / height, WIDTH / width)
        rows, columns = max(1, round(height * ratio)), max(1, round(width * ratio))
        return rows, columns, -((HEIGHT - rows) // 2), -((WIDTH - columns) // 2)
    if geometry is Geometry.LETTERBOX_CORNER:
        if HEIGHT * width <= WIDTH * height:
            return HEIGHT, max(1, HEIGHT * width // height), 0, 0
        return max(1, WIDTH * height // width), WIDTH, 0, 0
    height, width = (side - 2 * (max(0, side - 8 * min(height, width)) // 2) for side in (height, width))
    shorter = max(HEIGHT, WIDTH) if geometry is Geometry.CROP else round(256 / 224 * max(HEIGHT, WIDTH))
    rows = shorter if height <= width else int(shorter * height / width)
    columns = int(shorter * width / height) if height <= width else shorter
    return rows, columns, round((rows - HEIGHT) / 2), round((columns - WIDTH) / 2)


def bilinear(image: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Interpolates between the centres of pixels; none is smoothed."""
    result = np.empty((rows, columns, 3))
    for row in range(rows):
        y = min(max((row + 0.5) * image.shape[0] / rows - 0.5, 0), image.shape[0] - 1)
        for column in range(columns):
            x = min(max((column + 0.5) * image.shape[1] / columns - 0.5, 0), image.shape[1] - 1)
            above, before = math.floor(y), math.floor(x)
            below, behind = min(above + 1, image.shape[0] - 1), min(before + 1, image.shape[1] - 1)
            one, other = (
                image[line, before] * (1 - (x - before)) + image[line, behind] * (x - before) for line in (above, below)
            )
            result[row, column] = one * (1 - (y - above)) + other * (y - above)
    return result


@settings(max_examples=60)
@given(
    recipe=RECIPES,
    size=SIZES,
    corner=st.tuples(st.floats(0.3, 0.5), st.floats(0.3, 0.5)),
    end=st.tuples(st.floats(0.51, 0.7), st.floats(0.51, 0.7)),
)
def test_a_box_comes_back_to_its_place(
    recipe: Recipe, size: tuple[int, int], corner: tuple[float, float], end: tuple[float, float]
) -> None:
    """A scale and an offset in float32 lead there, and back. Each rounds by less than 1e-6 of at most 8 * 18 pixels."""
    height, width = size
    rows, columns, top, left = placed(recipe, height, width)
    is_crop = recipe.geometry in (Geometry.CROP, Geometry.CROP_RESIZED)
    skipped = [max(0, side - 8 * min(size)) // 2 if is_crop else 0 for side in size]
    box = np.array([corner[0] * width, corner[1] * height, end[0] * width, end[1] * height])
    scale = np.array([columns / (width - 2 * skipped[1]), rows / (height - 2 * skipped[0])] * 2)
    shown = (box - np.array(skipped[::-1] * 2)) * scale - np.array([left, top] * 2)
    back = recipe.preprocess(HEIGHT, WIDTH).to_source(shown[None].astype(np.float32), height, width)[0]
    np.testing.assert_allclose(back, box, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("word", "black", "white"), [("0..1", 0, 1), ("0..255", 0, 255), ("-1..1", -1, 1)])
def test_a_range_is_that_of_black_and_white(word: str, black: float, white: float) -> None:
    for level, value in ((0, black), (255, white)):
        image = np.full((20, 20, 3), level, np.uint8)
        np.testing.assert_allclose(run(Recipe.parse(f"stretch,{word}"), image), value, rtol=0, atol=1e-4)


def test_imagenet_follows_the_colours() -> None:
    red = np.zeros((20, 20, 3), np.uint8)
    red[..., 0] = 255
    expected = [(level - mean) / std for level, mean, std in zip((1, 0, 0), IMAGENET_MEAN, IMAGENET_STD, strict=True)]
    for text, channels in (("stretch_imagenet", expected), ("stretch,bgr,imagenet", expected[::-1])):
        np.testing.assert_allclose(run(Recipe.parse(text), red)[:, 3, 5], channels, rtol=0, atol=1e-5)


def test_padding_in_the_mean_colour_becomes_zero() -> None:
    white = np.full((10, 200, 3), 255, np.uint8)
    for text in (
        "letterbox,imagenet,fill=mean",
        "letterbox,bgr,imagenet,fill=mean",
        "letterbox,-1..1,mean=0.25,fill=mean",
    ):
        recipe = Recipe.parse(f"{text},unrounded")
        np.testing.assert_allclose(run(recipe, white)[:, 0], 0, rtol=0, atol=1e-5)  # a row of the padding
