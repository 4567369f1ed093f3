"""Adapts a recipe of pre-processing to the way in which an ONNX file takes images."""

from __future__ import annotations

from dataclasses import replace

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.recipe import GREY, Recipe
from split_infer_ros.models.recipe_words import Geometry, Order, Range, Resizing
from split_infer_ros.onnx.image_input import OnnxImageInput


def fit_recipe(recipe: Recipe, taken: OnnxImageInput, *, is_chosen: bool) -> Recipe:
    """Returns a recipe that suits the input of an ONNX file.

    If the file takes whole numbers, the input's values become 0..255. If the file takes grey images, the channels
    become red first, because the graph makes grey of red, green and blue.

    Args:
        recipe: the recipe of pre-processing to adapt.
        taken: how the file takes images.
        is_chosen: whether the user chose the recipe. Otherwise the recipe may change further. It stretches images if
            ``taken.is_stretched``. It loses its mean and std if the file takes whole numbers.

    Raises:
        ConfigurationError: the file takes whole numbers, and the user chose a mean, std or range that gives other
            values than 0..255.
    """
    if taken.is_stretched and not is_chosen:
        recipe = replace(recipe, geometry=Geometry.STRETCH, resizing=Resizing.SMOOTH, fill=GREY)
    if taken.is_grey:
        recipe = recipe.in_order(Order.RGB)
    if not taken.levels:
        return recipe
    levels = recipe.as_levels()
    if is_chosen and (recipe.range is Range.SIGNED or (recipe.mean, recipe.std) != (levels.mean, levels.std)):
        raise ConfigurationError(
            f"preprocessing '{recipe}' gives values other than 0..255, but {taken.graph.name} takes whole numbers; "
            "name no mean, std or range."
        )
    return levels
