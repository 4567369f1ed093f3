"""Reads the points of a ``sensor_msgs/PointCloud2``. It needs no loop over points, whatever the message's layout is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import PointCloudError

AXES = ("x", "y", "z")
MAX_POINTS = 1_200_000  # larger clouds are refused unless a caller allows more

# The types of a field's values, by the numbers that sensor_msgs/PointField gives them.
DATATYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}

MAX_SHOWN = 80  # the most characters of the fields' names that an error repeats


class PointField(Protocol):
    """The fields of a ``sensor_msgs/PointField``: where each point has one of its values."""

    name: str
    offset: int
    datatype: int
    count: int


class PointCloudMessage(Protocol):
    """The fields of a ``sensor_msgs/PointCloud2``. Any library may have made the message."""

    height: int
    width: int
    fields: Sequence[Any]  # of PointField
    is_bigendian: Any
    point_step: int
    row_step: int
    data: Any


def read_points(cloud: PointCloudMessage, max_points: int = MAX_POINTS) -> NDArray[np.float32]:
    """Returns the finite points of a cloud, float32 (number of points, 3), in the unit of the message: metres.

    The array is new memory. Points with NaN or an infinite coordinate are left out: a LIDAR sends them for beams that
    met nothing. Fields other than x, y and z are not read, so their datatypes do not matter. Numbers that float32 does
    not have are rounded to the nearest one.

    Args:
        cloud: the message, or any object with its fields. ``data`` has the buffer protocol.
        max_points: the most points, finite or not; a larger cloud is refused.

    Raises:
        PointCloudError: ``empty_cloud``, ``too_large``, ``bad_fields``, ``bad_step`` or ``truncated_cloud``.
    """
    height, width = cloud.height, cloud.width
    if height < 1 or width < 1:
        raise PointCloudError(DropReason.EMPTY_CLOUD, f"A point cloud of {width}x{height} points shows nothing.")
    if height * width > max_points:
        raise PointCloudError(
            DropReason.TOO_LARGE,
            f"A point cloud of {width}x{height} points exceeds the limit of {max_points:,} points.",
        )
    axes = [_find_axis(cloud, name) for name in AXES]
    _check_size(cloud)
    points = np.empty((height, width, len(AXES)), np.float32)
    is_finite = np.ones((height, width), np.bool_)
    for index, (offset, dtype) in enumerate(axes):
        values: NDArray[Any] = np.ndarray(
            (height, width), dtype, buffer=cloud.data, offset=offset, strides=(cloud.row_step, cloud.point_step)
        )
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            points[..., index] = values
        is_finite &= np.isfinite(points[..., index])
    found = points[is_finite] if not is_finite.all() else points.reshape(-1, len(AXES))
    if not len(found):
        raise PointCloudError(
            DropReason.EMPTY_CLOUD, f"None of the point cloud's {height * width:,} points has finite coordinates."
        )
    return found


class _Axis(NamedTuple):
    """Where a point has one coordinate, in bytes from its start, and the type of the coordinate."""

    offset: int
    dtype: np.dtype[Any]


def _find_axis(cloud: PointCloudMessage, name: str) -> _Axis:
    fields: list[PointField] = [field for field in cloud.fields if field.name == name]
    if len(fields) != 1:
        shown = ", ".join(str(field.name) for field in cloud.fields[:MAX_SHOWN])
        shown = shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}..."
        raise _bad_field(name, f"is there {len(fields)} times, and is needed once; the fields are: {shown or 'none'}")
    field = fields[0]
    if field.datatype not in DATATYPES:
        raise _bad_field(
            name, f"has the datatype {field.datatype}; sensor_msgs/PointField has {min(DATATYPES)} to {max(DATATYPES)}"
        )
    if field.count not in (0, 1):  # some senders leave it at 0
        raise _bad_field(name, f"has {field.count} values a point; a coordinate has one")
    dtype = np.dtype(DATATYPES[field.datatype]).newbyteorder(">" if cloud.is_bigendian else "<")
    end = field.offset + dtype.itemsize
    if field.offset < 0 or end > cloud.point_step:
        raise _bad_field(name, f"has the bytes {field.offset} to {end} of a point, and a point has {cloud.point_step}")
    return _Axis(field.offset, dtype)


def _bad_field(name: str, finding: str) -> PointCloudError:
    return PointCloudError(DropReason.BAD_FIELDS, f"A point cloud's field {name} {finding}.")


def _check_size(cloud: PointCloudMessage) -> None:
    """Refuses a cloud whose rows overlap, or whose data are too short for its rows."""
    row_bytes = cloud.width * cloud.point_step
    if cloud.row_step < row_bytes:
        raise PointCloudError(
            DropReason.BAD_STEP,
            f"row_step is {cloud.row_step} bytes, but a row of {cloud.width} points of {cloud.point_step} bytes has "
            f"{row_bytes:,}.",
        )
    data_bytes, needed = memoryview(cloud.data).nbytes, cloud.height * cloud.row_step
    if data_bytes < needed:
        raise PointCloudError(
            DropReason.TRUNCATED_CLOUD,
            f"The point cloud has {data_bytes:,} bytes; {cloud.height} rows of {cloud.row_step} bytes need {needed:,}.",
        )
