"""The places to which boxes belong: the cells of a network's maps, or the anchors of a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.lib.format import read_array

from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.errors import ConfigurationError, first_line
from split_infer_ros.runtime.user_files import read_regular

MAX_ANCHORS = 1_000_000
MAX_FILE_BYTES = 64 * 2**20
SUFFIXES = (".npy", ".json", ".txt", ".csv")


def count_cells(height: int, width: int, strides: Sequence[int]) -> int:
    """Returns the number of cells of maps with these strides, for an input of this size in pixels."""
    return sum(-(-height // stride) * -(-width // stride) for stride in strides)


def cells(height: int, width: int, strides: Sequence[int]) -> tuple[Floats, Floats]:
    """Returns the corner and the side of each of the n cells of maps, row by row and level by level.

    Args:
        height, width: the size of the model's input in pixels.
        strides: pixels of a cell's side in each level.

    Returns:
        The corners, float32 (n, 2), x and y in cells. The sides, float32 (n, 1), in pixels.
    """
    corners, sides = [], []
    for stride in strides:
        rows, columns = -(-height // stride), -(-width // stride)
        y, x = np.meshgrid(np.arange(rows, dtype=np.float32), np.arange(columns, dtype=np.float32), indexing="ij")
        corners.append(np.stack((x.ravel(), y.ravel()), 1))
        sides.append(np.full((rows * columns, 1), stride, np.float32))
    return np.concatenate(corners), np.concatenate(sides)


def read_anchors(path: Path) -> Floats:
    """Reads the n anchors in a file, float32 (n, 4): centre x, centre y, width and height, in the unit of the boxes.

    The file is an array of NumPy (``.npy``), a JSON list of lists, or text with four numbers a line.

    Raises:
        ConfigurationError: the file is missing, too large, or holds no such numbers.
    """
    takes = "an anchors file holds four numbers for each box: centre x, centre y, width, height"
    try:
        if path.suffix.lower() not in SUFFIXES:
            raise ValueError(f"its suffix is none of {', '.join(SUFFIXES)}")
        data = read_regular(path, MAX_FILE_BYTES)
        if path.suffix.lower() == ".npy":
            values = read_array(BytesIO(data), allow_pickle=False)
        elif path.suffix.lower() == ".json":
            values = np.array(json.loads(data), dtype=np.float64)
        else:
            text = data.decode("utf-8-sig").replace(",", " ")
            values = np.array([line.split() for line in text.splitlines() if line.strip()], dtype=np.float64)
        if values.dtype.kind not in "fiu":
            raise ValueError(f"its elements are {values.dtype}")
        with np.errstate(over="ignore"):  # numbers that become infinite are refused
            anchors = np.ascontiguousarray(values, dtype=np.float32)
        anchors = anchors[0] if anchors.ndim == 3 and len(anchors) == 1 else anchors
        if anchors.ndim != 2 or anchors.shape[1] != 4 or not 0 < len(anchors) <= MAX_ANCHORS:
            raise ValueError(f"it holds numbers of shape {anchors.shape}")
        if not np.isfinite(anchors).all() or (anchors[:, 2:] <= 0).any():
            raise ValueError("it holds a size that is not positive, or a number that is not finite")
    except (OSError, ValueError, TypeError, ArithmeticError, EOFError, RecursionError, MemoryError) as error:
        raise ConfigurationError(f"anchors {path} cannot be read ({first_line(error)}); {takes}.") from error
    return anchors
