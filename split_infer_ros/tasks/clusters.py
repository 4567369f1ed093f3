"""The task ``clusters``: finds groups of points in point clouds, as the LIDAR of Autoware does (paper 003, case II)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.takes import Takes
from split_infer_ros.models.user_names import CLUSTERS
from split_infer_ros.point_clouds.clustering import Clusterer
from split_infer_ros.point_clouds.settings import ClusterSettings

LABELS = ("object",)  # clustering finds that there is something, and not what it is
EXAMPLE_OBJECTS, EXAMPLE_POINTS = 40, 50_000
ALWAYS_POINTS = 10_000  # so few points never have too many neighbours


class ClustersTask:
    """Finds clusters in point clouds. It is a ``Task``. The score of an object is 1: clustering knows no probability.

    Args:
        settings: what counts as a cluster.

    Raises:
        ConfigurationError: SciPy is not installed.
    """

    takes = Takes.POINTS
    labels: tuple[str, ...] = LABELS

    def __init__(self, settings: ClusterSettings) -> None:
        self.name = CLUSTERS
        self.identity = f"{self.name} {settings}"
        self._clusterer = Clusterer(settings)

    def example(self) -> Floats:
        """Returns the points of boxes of the size of cars, spread over a square of 80 x 80 m; float32 (n, 3)."""
        random = np.random.default_rng(0)
        centres = random.uniform((-40, -40, -1), (40, 40, 0), (EXAMPLE_OBJECTS, 3))
        owners = random.integers(EXAMPLE_OBJECTS, size=EXAMPLE_POINTS)
        offsets = random.uniform((-2, -1, -0.4), (2, 1, 1), (EXAMPLE_POINTS, 3))
        return (centres[owners] + offsets).astype(np.float32)

    def check(self, payload: Floats) -> None:
        """Checks a point cloud that came.

        Raises:
            PointCloudError: it occupies too many voxels, or these have too many neighbours.
        """
        if len(payload) > ALWAYS_POINTS:
            self._clusterer.voxels_of(payload)

    def run(self, batch: Sequence[Floats]) -> Sequence[Detections]:
        """Returns the clusters of each point cloud, those with the most points first.

        Raises:
            PointCloudError: as for ``check``.
        """
        return [self._objects(points) for points in batch]

    def close(self) -> None:
        """Does nothing, because nothing was started."""

    def _objects(self, points: Floats) -> Detections:
        found = self._clusterer.find(points)
        boxes = np.concatenate((found.lows, found.highs), 1)
        return Detections(boxes, np.ones(len(found), np.float32), np.zeros(len(found), np.int64))
