"""Defines a family of models: how its outputs look, how its images are pre-processed, and what speaks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.layout import OutputLayout


@dataclass(frozen=True, slots=True)
class Family:
    """Models whose outputs have the same meaning.

    Attributes:
        name: the value of the parameter ``decoder`` with which users choose the family.
        reads: describes the outputs in messages. N is the batch, and n counts boxes.
        find: returns the layouts that can read outputs of these shapes, the most likely first. It looks at names only
            to tell outputs of equal shapes apart.
        speaks_for: returns whether names, metadata, numbers of boxes and values make a layout likely. If not, the
            family is used only if the user names it.
        recipe: returns the usual pre-processing of models with a layout, as the parameter ``preprocessing`` takes it.
    """

    name: str
    reads: str
    find: Callable[[OutputFacts], Sequence[OutputLayout]]
    recipe: Callable[[OutputLayout, OutputFacts], str]
    speaks_for: Callable[[OutputLayout, OutputFacts], bool] = lambda layout, facts: True


def always(recipe: str) -> Callable[[OutputLayout, OutputFacts], str]:
    """Returns a function, for ``Family.recipe``, that gives the same recipe for every layout."""
    return lambda layout, facts: recipe
