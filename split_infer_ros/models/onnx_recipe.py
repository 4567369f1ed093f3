"""Adapts a recipe of pre-processing to the way in which an ONNX file takes images."""

from __future__ import annotations

from dataclasses import replace

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.recipe import GREY, Recipe
from split_infer_ros.models.recipe_words import Geometry, Order, Range, Resizing
from split_infer_ros.onnx.image_input import OnnxImageInput


def fit_recipe(recipe: Recipe, taken: OnnxImageInput, *, is_chosen: bool) -> Recipe:
    """Adapts a recipe to an input: 0..255 for whole numbers, and red first if grey is made of the colours.

    Args:
        recipe: the pre-processing.
        taken: how the file takes images.
        is_chosen: whether the user chose the recipe. Otherwise it may change to stretching, or lose its mean and std.

    Raises:
        ConfigurationError: the user chose values that whole numbers cannot hold.
    """
    if taken.is_stretched and not is_chosen:
        recipe = replace(recipe, geometry=Geometry.STRETCH, resizing=Resizing.SMOOTH, fill=GREY)
    if taken.is_grey and recipe.order is not Order.RGB:
        recipe = replace(recipe, order=Order.RGB, mean=_reversed(recipe.mean), std=_reversed(recipe.std))
    if not taken.levels:
        return recipe
    levels = recipe.as_levels()
    if is_chosen and (recipe.range is Range.SIGNED or (recipe.mean, recipe.std) != (levels.mean, levels.std)):
        raise ConfigurationError(
            f"preprocessing '{recipe}' gives values other than 0..255, but {taken.graph.name} takes whole numbers; "
            "name no mean, std or range."
        )
    return levels


def _reversed(values: tuple[float, float, float]) -> tuple[float, float, float]:
    return values[2], values[1], values[0]
