"""Reads parts of outputs: the numbers of all boxes of one image, in whatever shape they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from split_infer_ros.models.decoders.layout import Arrangement, OutputLayout, Part

Arrays = Mapping[str, npt.NDArray[Any]]
"""Outputs by name."""


def images_of(layout: OutputLayout, outputs: Arrays) -> list[dict[str, npt.NDArray[Any]]]:
    """Divides a layout's outputs for a batch into one dictionary for each image.

    Outputs without a batch in front, such as boxes (n, 4), belong to one image.
    """
    arrays = {name: outputs[name] for name in layout.outputs}
    if layout.boxes is not None and layout.rows is Arrangement.ROWS and arrays[layout.boxes.outputs[0]].ndim == 2:
        arrays = {name: array[None] for name, array in arrays.items()}
    count = min(len(array) for array in arrays.values())
    return [{name: array[index] for name, array in arrays.items()} for index in range(count)]


def numbers_of(part: Part, layout: OutputLayout, image: Arrays) -> npt.NDArray[Any]:
    """Returns the numbers of all boxes of an image, (n, k). If one output holds them, this makes no copy."""
    found = [_as_rows(image[name], layout)[:, part.first : part.last] for name in part.outputs]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _as_rows(array: npt.NDArray[Any], layout: OutputLayout) -> npt.NDArray[Any]:
    """Returns an image's output as (n, k)."""
    rows = array
    if layout.boxes is None:
        rows = array.reshape(1, -1)
    elif layout.rows is Arrangement.MAPS and array.ndim == 3:
        rows = array.reshape(len(array), -1).T
    elif array.ndim < 2:  # a number for each box, or one for all
        rows = array.reshape(-1, 1)
    elif array.ndim > 2:  # (n, 1, 4)
        rows = array.reshape(len(array), array.shape[-1])
    elif layout.rows is Arrangement.COLUMNS:
        rows = array.T
    return rows
