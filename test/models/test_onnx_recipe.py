"""A recipe of pre-processing follows the input of an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

pytest.importorskip("onnx")

from onnx import TensorProto
from onnx_files import Shape, hollow

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.onnx_recipe import fit_recipe
from split_infer_ros.models.recipe import Recipe
from split_infer_ros.onnx.image_input import OnnxImageInput, read_image_input


def read(inputs: Mapping[str, Shape], **dtypes: int) -> OnnxImageInput:
    return read_image_input(hollow({"output0": (1, 84, 8400)}, inputs=inputs, dtypes=dtypes))


def test_a_recipe_follows_the_input() -> None:
    plain, grey = (read({"images": (1, colours, 48, 64)}) for colours in (3, 1))
    whole = read({"images": (1, 3, 48, 64)}, images=TensorProto.UINT8)
    recipe = Recipe.parse("stretch_imagenet,bgr")
    assert fit_recipe(recipe, plain, is_chosen=True) == recipe
    assert fit_recipe(recipe, whole, is_chosen=False) == Recipe.parse("stretch,smooth,bgr,0..255")
    assert fit_recipe(Recipe.parse("letterbox"), whole, is_chosen=True) == Recipe.parse("letterbox,0..255")
    assert fit_recipe(recipe, grey, is_chosen=True) == Recipe.parse("stretch_imagenet")
    for text in ("stretch_imagenet", "letterbox,-1..1", "letterbox,0..255,std=2"):
        with pytest.raises(ConfigurationError, match=r"but model\.onnx takes whole numbers; name no mean, std or"):
            fit_recipe(Recipe.parse(text), whole, is_chosen=True)


def test_images_are_stretched_where_rtdetr_takes_their_size() -> None:
    sizes = {"images": ("N", 3, 48, 64), "orig_target_sizes": ("N", 2)}
    found = read(sizes, orig_target_sizes=TensorProto.INT64)
    assert fit_recipe(Recipe.parse("letterbox_corner"), found, is_chosen=False) == Recipe.parse("stretch_smooth")
    chosen = Recipe.parse("letterbox_corner")
    assert fit_recipe(chosen, found, is_chosen=True) == chosen
