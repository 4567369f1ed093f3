"""The voxel grid: points that share a small cube of space become one group."""

from __future__ import annotations

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats, Integers
from split_infer_ros.point_clouds.point_groups import PointGroups


def group_by_voxel(points: Floats, size_m: float) -> PointGroups:
    """Returns the occupied voxels of points. The grid begins at the origin, so it is the same for all clouds.

    Args:
        points: float32 (number of points, 3), all finite. No coordinate may be 2^20 voxels or more from the origin.
        size_m: the side of a voxel, in metres.
    """
    return PointGroups.of_points(points).merged(_keys(points, size_m))


def _keys(points: Floats, size_m: float) -> Integers:
    """Returns one number for each point, int64. Points have equal numbers if they are in one voxel."""
    if not len(points):
        return np.zeros(0, np.int64)
    cells = np.floor(points / np.float32(size_m)).astype(np.int64)
    cells -= cells.min(axis=0)
    _, rows, columns = (cells.max(axis=0) + 1).tolist()
    keys: Integers = (cells[:, 0] * rows + cells[:, 1]) * columns + cells[:, 2]
    return keys
