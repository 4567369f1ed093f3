"""Reads parts of outputs: some numbers of all boxes of one image, whatever the shapes of the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from split_infer_ros.models.decoders.layout import Arrangement, OutputLayout, Part

Arrays = Mapping[str, npt.NDArray[Any]]
"""Outputs by name."""


def images_of(layout: OutputLayout, outputs: Arrays) -> list[dict[str, npt.NDArray[Any]]]:
    """Divides the outputs of a batch that a layout reads. Returns a dictionary of outputs by name for each image.

    Outputs without a batch in front, such as boxes (n, 4), belong to one image.
    """
    arrays = {name: outputs[name] for name in layout.outputs}
    if layout.boxes is not None and layout.rows is Arrangement.ROWS and arrays[layout.boxes.outputs[0]].ndim == 2:
        arrays = {name: array[None] for name, array in arrays.items()}
    count = min(len(array) for array in arrays.values())
    return [{name: array[index] for name, array in arrays.items()} for index in range(count)]


def numbers_of(part: Part, layout: OutputLayout, image: Arrays) -> npt.NDArray[Any]:
    """Returns the numbers of a part for all boxes of an image. If one output holds them, this makes no copy.

    Args:
        part: says which numbers are returned.
        layout: how boxes lie in the outputs.
        image: the outputs for the image by name, without a batch in front, as ``images_of`` returns them.

    Returns:
        (n, k): k numbers for each of n boxes.
    """
    found = [_as_rows(image[name], layout)[:, part.first : part.last] for name in part.outputs]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _as_rows(array: npt.NDArray[Any], layout: OutputLayout) -> npt.NDArray[Any]:
    """Returns an output for one image as rows (n, k), one for each box."""
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
