"""Finds clusters in point clouds: groups of points that lie near each other.

This is Euclidean clustering (paper 003, §V, Case II). Points near the ground or far away are left out. The points of a
voxel become one. Voxels whose centroids are neighbours are connected. A cluster is a connected component.

SciPy is imported when a ``Clusterer`` is made.
"""

from __future__ import annotations

import math

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats, Integers
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import PointCloudError
from split_infer_ros.point_clouds.point_groups import PointGroups
from split_infer_ros.point_clouds.settings import ClusterSettings
from split_infer_ros.point_clouds.voxel_grid import group_by_voxel
from split_infer_ros.runtime.optional_packages import import_package

# Both bound the memory and the time of a cloud. The points of a street have a tenth of these pairs.
MAX_VOXELS = 200_000
MAX_PAIRS = 3_000_000  # of neighbours

SCIPY_MODULES = ("scipy", "scipy.sparse.csgraph", "scipy.spatial")


class Clusterer:
    """Finds clusters in point clouds. It keeps nothing between two clouds, so several threads may use it at once.

    Args:
        settings: what counts as a cluster.

    Raises:
        ConfigurationError: SciPy is not installed, or cannot be loaded.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        for module in SCIPY_MODULES:
            import_package(module, "Clustering point clouds needs the Python package scipy", "pip install scipy")

    def find(self, points: Floats) -> PointGroups:
        """Returns the clusters of points, those with the most points first.

        Args:
            points: float32 (number of points, 3) in metres, all finite.

        Raises:
            PointCloudError: ``too_large``: the points occupy too many voxels, or these have too many neighbours.
        """
        settings, voxels = self._settings, self.voxels_of(points)
        clusters = voxels.merged(connect(voxels.centroids, settings.neighbour_distance_m))
        clusters = clusters.where(clusters.counts >= settings.min_points)
        return clusters.where(np.argsort(-clusters.counts, kind="stable"))

    def voxels_of(self, points: Floats) -> PointGroups:
        """Returns the voxels that ``find`` would cluster. ``points`` and errors are as for ``find``."""
        voxels = group_by_voxel(self.within_bounds(points), self._settings.voxel_size_m)
        if len(voxels) > MAX_VOXELS:
            raise PointCloudError(
                DropReason.TOO_LARGE,
                f"The point cloud occupies {len(voxels):,} voxels, and at most {MAX_VOXELS:,} are clustered; set a "
                "larger voxel_size_m or a smaller max_range_m.",
            )
        pairs = estimate_pairs(voxels.centroids, self._settings.neighbour_distance_m)
        if pairs > MAX_PAIRS:
            raise PointCloudError(
                DropReason.TOO_LARGE,
                f"The voxels of the point cloud have about {pairs:,} pairs of neighbours, and at most {MAX_PAIRS:,} "
                "are clustered; set a larger voxel_size_m, or a smaller neighbour_distance_m or max_range_m.",
            )
        return voxels

    def within_bounds(self, points: Floats) -> Floats:
        """Returns the points that the settings do not leave out, float32 (n, 3)."""
        settings = self._settings
        x, y, z = points.T
        with np.errstate(over="ignore"):  # a square may be infinite, which is farther than any limit
            is_near = x * x + y * y <= settings.max_range_m**2
        kept: Floats = points[is_near & (z >= settings.min_z_m) & (z <= settings.max_z_m)]
        return kept


def estimate_pairs(points: Floats, distance_m: float) -> int:
    """Estimates how many pairs of points are at most this far apart, without looking at pairs.

    Space is divided into cubes of this side. If points fill space evenly, a point has as many neighbours as there are
    in 4.2 cubes. If they lie in a plane, it has fewer.
    """
    counts = group_by_voxel(points.astype(np.float32), distance_m).counts
    return round(2 / 3 * math.pi * float(counts @ counts))


def connect(points: Floats, distance_m: float) -> Integers:
    """Returns the connected component of each point, an int64 array. Neighbours are in one component.

    Args:
        points: float64 (number of points, 3), all finite.
        distance_m: two points are neighbours if they are at most this far apart.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    # Neighbours are found as fast in an unbalanced tree, which takes less time to build.
    tree = cKDTree(points, balanced_tree=False, compact_nodes=False)
    pairs = tree.query_pairs(distance_m, output_type="ndarray")
    shape = (len(points), len(points))
    graph = coo_array((np.ones(len(pairs), np.bool_), (pairs[:, 0], pairs[:, 1])), shape=shape)
    _, components = connected_components(graph, directed=False)
    labels: Integers = components.astype(np.int64)
    return labels
