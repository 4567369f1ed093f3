"""Visits the leaves of an operator's arguments: nested tuples, lists and dictionaries.

torch's own functions also know named tuples and other types, and take several times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree


def leaves(tree: Any) -> list[Any]:
    """Returns all leaves in their order."""
    found: list[Any] = []
    _add(tree, found)
    return found


def _add(tree: Any, found: list[Any]) -> None:
    kind = type(tree)
    if kind is tuple or kind is list:
        for each in tree:
            _add(each, found)
    elif kind is dict:
        for each in tree.values():
            _add(each, found)
    elif isinstance(tree, (tuple, list, dict)):
        found += _pytree.tree_leaves(tree)
    else:
        found.append(tree)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Returns the tree with the function's value in the place of each leaf."""
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind([mapped(function, each) for each in tree])
    if kind is dict:
        return {name: mapped(function, each) for name, each in tree.items()}
    return _pytree.tree_map(function, tree) if isinstance(tree, (tuple, list, dict)) else function(tree)
