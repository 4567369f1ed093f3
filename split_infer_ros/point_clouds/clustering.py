"""Finds clusters in point clouds: groups of points that lie near each other.

This is Euclidean clustering (paper 003, §V, Case II). Points near the ground or far away are left out. The points of a
voxel become one. Voxels whose centroids are neighbours are connected. A cluster is a connected component.

SciPy is imported when a ``Clusterer`` is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats, Integers
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, PointCloudError
from split_infer_ros.point_clouds.point_groups import PointGroups
from split_infer_ros.point_clouds.voxel_grid import group_by_voxel
from split_infer_ros.runtime.optional_packages import import_package
from split_infer_ros.setting import check_settings, setting

# Both bound the number of pairs of neighbours, and so the memory and the time of a cloud. A voxel has as many
# neighbours as there are voxels in a ball: at most a few hundred.
MAX_VOXELS = 200_000
MAX_RATIO = 4.0  # of the distance between neighbours to a voxel's side

SCIPY_MODULES = ("scipy", "scipy.sparse.csgraph", "scipy.spatial")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What counts as a cluster. Lengths are in metres, in the frame of the point cloud: z points upwards.

    Raises:
        ConfigurationError: a value is not accepted, or two values contradict each other.
    """

    voxel_size_m: float = setting(
        0.2, "The side of a voxel. The points in a voxel are clustered as one.", minimum=0.02, maximum=10.0
    )
    neighbour_distance_m: float = setting(
        0.6,
        "Two voxels are in one cluster if the centroids of their points are at most this far apart. It may be 1 to "
        f"{MAX_RATIO:g} times voxel_size_m.",
        minimum=0.02,
        maximum=40.0,
    )
    min_points: int = setting(
        10, "The fewest points of a cluster. Smaller groups are left out.", minimum=1, maximum=1_000_000
    )
    min_z_m: float = setting(
        -1.4,
        "Points below this height are left out. Otherwise the ground connects everything. The default suits a sensor "
        "that is 1.8 m above the ground.",
        minimum=-1000.0,
        maximum=1000.0,
    )
    max_z_m: float = setting(2.0, "Points above this height are left out.", minimum=-1000.0, maximum=1000.0)
    max_range_m: float = setting(
        100.0,
        "Points farther than this from the vertical axis through the sensor are left out.",
        minimum=1.0,
        maximum=1000.0,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.min_z_m >= self.max_z_m:
            raise ConfigurationError(
                f"min_z_m is {self.min_z_m:g} and max_z_m is {self.max_z_m:g}, so no point is between them; make "
                "max_z_m the larger one."
            )
        if not self.voxel_size_m <= self.neighbour_distance_m <= MAX_RATIO * self.voxel_size_m:
            raise ConfigurationError(
                f"neighbour_distance_m cannot be {self.neighbour_distance_m:g} for voxels of {self.voxel_size_m:g} m; "
                f"it takes {self.voxel_size_m:g} to {MAX_RATIO * self.voxel_size_m:g}."
            )


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
            PointCloudError: ``too_large``: the points occupy more than ``MAX_VOXELS`` voxels.
        """
        settings = self._settings
        voxels = group_by_voxel(self._within_bounds(points), settings.voxel_size_m)
        if len(voxels) > MAX_VOXELS:
            raise PointCloudError(
                DropReason.TOO_LARGE,
                f"The point cloud occupies {len(voxels):,} voxels, and at most {MAX_VOXELS:,} are clustered; set a "
                "larger voxel_size_m or a smaller max_range_m.",
            )
        clusters = voxels.merged(connect(voxels.centroids, settings.neighbour_distance_m))
        clusters = clusters.where(clusters.counts >= settings.min_points)
        return clusters.where(np.argsort(-clusters.counts, kind="stable"))

    def _within_bounds(self, points: Floats) -> Floats:
        settings = self._settings
        x, y, z = points.T
        with np.errstate(over="ignore"):  # a square may be infinite, which is farther than any limit
            is_near = x * x + y * y <= settings.max_range_m**2
        return points[is_near & (z >= settings.min_z_m) & (z <= settings.max_z_m)]


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
