"""Groups of points: the voxels of a grid, and clusters of these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from split_infer_ros.buffers.host_arrays import Flags, Floats, Integers


@dataclass(frozen=True, slots=True, eq=False)
class PointGroups:
    """What is known of groups of points. All arrays have one row a group.

    Attributes:
        counts: int64 (n,), the number of points of each group; at least 1.
        sums: float64 (n, 3), the sum of the points' coordinates.
        lows, highs: float32 (n, 3), the smallest and the largest coordinates: opposite corners of the box around the
            group, along the axes.
    """

    counts: Integers
    sums: NDArray[np.float64]
    lows: NDArray[np.float32]
    highs: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def centroids(self) -> NDArray[np.float64]:
        """The mean of each group's points, float64 (n, 3)."""
        return self.sums / self.counts[:, None]

    def merged(self, keys: Integers) -> PointGroups:
        """Returns these groups, with those of equal keys merged. The result is in the order of the keys.

        Args:
            keys: int64 (n,), the key of each group.
        """
        order = np.argsort(keys)
        ordered = keys[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))[: len(keys)]
        return PointGroups(
            np.add.reduceat(self.counts[order], starts),
            np.add.reduceat(self.sums[order], starts),
            np.minimum.reduceat(self.lows[order], starts),
            np.maximum.reduceat(self.highs[order], starts),
        )

    def where(self, kept: Flags | Integers) -> PointGroups:
        """Returns some of these groups: those that flags (n,) mark, or those with the given indices, in order."""
        return PointGroups(self.counts[kept], self.sums[kept], self.lows[kept], self.highs[kept])

    @classmethod
    def of_points(cls, points: Floats) -> PointGroups:
        """Returns a group for each point. ``points`` is float32 (n, 3), all finite."""
        return cls(np.ones(len(points), np.int64), points.astype(np.float64), points, points)
