"""The task ``clusters`` gives the clusters of each point cloud as boxes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy")
from split_infer_ros.errors import PointCloudError
from split_infer_ros.point_clouds.settings import ClusterSettings
from split_infer_ros.tasks.clusters import EXAMPLE_OBJECTS, EXAMPLE_POINTS, ClustersTask

NEAR, FAR = np.array([[5.0, 0, 0], [5.1, 0.1, 0.1], [5.2, 0, 0]]), np.array([[20.0, 1, 1], [20.1, 1, 1]])


def test_each_cloud_gets_the_boxes_of_its_clusters() -> None:
    task = ClustersTask(ClusterSettings(min_points=2))
    both, one = np.concatenate((FAR, NEAR)).astype(np.float32), NEAR.astype(np.float32)
    of_both, of_one = task.run([both, one])
    assert of_both.boxes.tolist() == [[*both[2:].min(0), *both[2:].max(0)], [*both[:2].min(0), *both[:2].max(0)]]
    assert of_one.boxes.tolist() == of_both.boxes.tolist()[:1]
    assert of_both.scores.tolist() == [1.0, 1.0]
    assert of_both.labels.tolist() == [0, 0]


def test_settings_decide_what_a_cluster_is() -> None:
    assert len(ClustersTask(ClusterSettings(min_points=3)).run([FAR.astype(np.float32)])[0]) == 0
    assert ClustersTask(ClusterSettings(min_points=3)).identity != ClustersTask(ClusterSettings()).identity


def test_example_has_many_points_and_objects() -> None:
    task = ClustersTask(ClusterSettings())
    points = task.example()
    assert points.dtype == np.float32
    assert points.shape == (EXAMPLE_POINTS, 3)
    (found,) = task.run([points])
    assert EXAMPLE_OBJECTS / 2 < len(found) <= EXAMPLE_OBJECTS  # some overlap


def test_cloud_with_too_many_voxels_is_refused() -> None:
    task = ClustersTask(ClusterSettings(voxel_size_m=0.02, neighbour_distance_m=0.02))
    scattered = np.random.default_rng(0).uniform((-60, -60, -1), (60, 60, 1), (300_000, 3)).astype(np.float32)
    with pytest.raises(PointCloudError, match="voxels"):
        task.run([scattered])
