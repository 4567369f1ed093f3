"""Writes point clouds value by value, in any layout. What reads them must not share its arithmetic."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# struct's characters of the datatypes of sensor_msgs/PointField, by their numbers there
LETTERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 8: "d"}
FLOAT32 = 7


@dataclass(frozen=True)
class FieldValues:
    """The fields of a ``sensor_msgs/PointField``."""

    name: str
    offset: int
    datatype: int = FLOAT32
    count: int = 1


@dataclass(frozen=True)
class CloudValues:
    """The fields of a ``sensor_msgs/PointCloud2``, without the header."""

    height: int
    width: int
    data: Any
    point_step: int = 12
    row_step: int = 0
    is_bigendian: bool = False
    fields: Sequence[FieldValues] = field(
        default_factory=lambda: (FieldValues("x", 0), FieldValues("y", 4), FieldValues("z", 8))
    )


def write_cloud(
    rows: Sequence[Sequence[Sequence[float]]],
    fields: Sequence[FieldValues],
    *,
    point_step: int,
    padding: int = 0,
    is_bigendian: bool = False,
) -> CloudValues:
    """Returns a point cloud.

    Args:
        rows: the points of each row; each point has a value for x, y and z.
        fields: has x, y and z, in any order, and may have other fields. The bytes of others, and between fields, are
            255.
        point_step: bytes of a point.
        padding: bytes after each row.
        is_bigendian: the byte order of the values.
    """
    row_step = len(rows[0]) * point_step + padding
    data = bytearray(b"\xff" * (row_step * len(rows)))
    places = {each.name: each for each in fields}
    for index, row in enumerate(rows):
        for column, point in enumerate(row):
            for name, value in zip("xyz", point, strict=True):
                place = places[name]
                letter = (">" if is_bigendian else "<") + LETTERS[place.datatype]
                struct.pack_into(letter, data, index * row_step + column * point_step + place.offset, value)
    return CloudValues(len(rows), len(rows[0]), bytes(data), point_step, row_step, is_bigendian, tuple(fields))


def cloud_of(points: np.ndarray) -> CloudValues:
    """Returns a cloud of float32 points, (height, width, 3) or (number of points, 3), in little-endian order."""
    height, width = (1, len(points)) if points.ndim == 2 else points.shape[:2]
    return CloudValues(height, width, points.astype("<f4").tobytes(), row_step=12 * width)
