"""Clusters are connected voxels: compared with a search through all pairs, and with the objects of drawn streets."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from point_cloud_values import cloud_of

from benchmarks.point_clouds.lidar_scene import NOISE_M, draw_lidar_scene
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, PointCloudError
from split_infer_ros.point_clouds.clustering import MAX_VOXELS, Clusterer, connect, estimate_pairs
from split_infer_ros.point_clouds.reading import read_points
from split_infer_ros.point_clouds.settings import MAX_RATIO, ClusterSettings

pytest.importorskip("scipy", reason="test_clustering.py needs scipy")

CHILD_S = 60  # a bound on the process that a test starts
WIDE = {"min_z_m": -100.0, "max_z_m": 100.0, "min_points": 1}


def find_by_all_pairs(points: np.ndarray, settings: ClusterSettings) -> list[tuple[int, list[float], list[float]]]:
    """Returns the number of points, the lowest and the highest corner of each cluster, in any order."""
    voxels: dict[tuple[int, ...], list[np.ndarray]] = defaultdict(list)
    for point in points:
        x, y, z = map(float, point)
        if math.hypot(x, y) <= settings.max_range_m and settings.min_z_m <= z <= settings.max_z_m:
            voxels[tuple(math.floor(value / np.float32(settings.voxel_size_m)) for value in point)].append(point)
    groups = [np.array(group) for group in voxels.values()]
    means = [group.mean(axis=0, dtype=np.float64) for group in groups]
    clusters, left = [], set(range(len(groups)))
    while left:
        reached, waiting = set(), [left.pop()]
        while waiting:
            one = waiting.pop()
            reached.add(one)
            near = {other for other in left if math.dist(means[one], means[other]) <= settings.neighbour_distance_m}
            left -= near
            waiting += near
        own = np.concatenate([groups[index] for index in reached])
        if len(own) >= settings.min_points:
            clusters.append((len(own), own.min(axis=0).tolist(), own.max(axis=0).tolist()))
    return clusters


def found_in(points: np.ndarray, settings: ClusterSettings) -> list[tuple[int, list[float], list[float]]]:
    found = Clusterer(settings).find(points)
    return list(zip(found.counts.tolist(), found.lows.tolist(), found.highs.tolist(), strict=True))


@given(
    count=st.integers(0, 80),
    spread=st.sampled_from([0.5, 2.0, 8.0]),
    voxel_size_m=st.sampled_from([0.1, 0.25, 1.0]),
    ratio=st.floats(1, MAX_RATIO),
    min_points=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_clusters_are_those_of_a_search_through_all_pairs(
    count: int, spread: float, voxel_size_m: float, ratio: float, min_points: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    points = (rng.standard_normal((count, 3)) * spread).astype(np.float32)
    settings = ClusterSettings(
        voxel_size_m=voxel_size_m,
        neighbour_distance_m=max(voxel_size_m, min(ratio * voxel_size_m, MAX_RATIO * voxel_size_m)),
        min_points=min_points,
        min_z_m=-2.0,
        max_z_m=3.0,
        max_range_m=6.0,
    )
    assert sorted(found_in(points, settings)) == sorted(find_by_all_pairs(points, settings))


def test_components_are_connected_by_neighbours_alone() -> None:
    line = np.array([[0, 0, 0], [1, 0, 0], [2, 0, 0], [3.01, 0, 0], [4, 0, 0], [0, 9, 0]], float)
    labels = connect(line, 1.0).tolist()  # a distance of exactly 1 is near enough
    assert labels[0] == labels[1] == labels[2] != labels[3] == labels[4] != labels[5] != labels[0]


def test_clusters_with_the_most_points_come_first() -> None:
    rng = np.random.default_rng(0)
    parts = [np.array([10.0 * place, 0, 0]) + rng.random((count, 3)) for place, count in enumerate((7, 50, 3, 20))]
    found = Clusterer(ClusterSettings(**WIDE, voxel_size_m=0.5, neighbour_distance_m=2.0)).find(
        np.concatenate(parts).astype(np.float32)
    )
    assert found.counts.tolist() == [50, 20, 7, 3]


def test_bounds_leave_points_out() -> None:
    points = np.array([[0, 0, -2], [0, 0, 0], [0, 0, 3], [9, 0, 0], [8, 8, 0], [3e38, -3e38, 0]], np.float32)
    settings = ClusterSettings(min_points=1, min_z_m=-1.0, max_z_m=1.0, max_range_m=10.0)
    assert sorted(found_in(points, settings)) == [(1, [0, 0, 0], [0, 0, 0]), (1, [9, 0, 0], [9, 0, 0])]


@pytest.mark.parametrize("points", [np.zeros((0, 3)), np.full((5, 3), 50.0)], ids=["no points", "none within bounds"])
def test_nothing_within_bounds_is_no_cluster(points: np.ndarray) -> None:
    assert len(Clusterer(ClusterSettings()).find(points.astype(np.float32))) == 0


@pytest.mark.parametrize("seed", range(4))
def test_objects_of_a_street_are_found_one_by_one(seed: int) -> None:
    scene = draw_lidar_scene(seed)
    settings = ClusterSettings()
    found = Clusterer(settings).find(read_points(cloud_of(scene.points)))
    margin = 6 * NOISE_M
    # An object that hides the middle of another one divides it. So each object has one cluster or more.
    owners = [
        np.flatnonzero((low >= scene.lows - margin).all(axis=1) & (high <= scene.highs + margin).all(axis=1)).tolist()
        for low, high in zip(found.lows, found.highs, strict=True)
    ]
    is_wall = (found.lows[:, 1] < -9) | (found.highs[:, 1] > 9)
    assert all(len(owner) == 1 for owner, wall in zip(owners, is_wall, strict=True) if not wall)
    seen = {owner[0] for owner in owners if owner}
    assert {index for index, hits in enumerate(scene.hits) if hits >= 200} <= seen
    assert len(seen) >= 20
    assert is_wall.any()
    assert np.bincount([owner[0] for owner in owners if owner]).max() <= 4


def test_a_million_points_are_clustered() -> None:
    scene = draw_lidar_scene(0, 15_625)
    points = read_points(cloud_of(scene.points))
    assert scene.points.size == 3_000_000
    assert len(points) > 800_000
    found = Clusterer(ClusterSettings()).find(points)
    assert 20 <= len(found) < 200
    assert found.counts.sum() > 100_000


def test_points_in_too_many_voxels_are_refused() -> None:
    points = np.random.default_rng(0).uniform([-60, -60, -1], [60, 60, 2], (1_000_000, 3)).astype(np.float32)
    with pytest.raises(
        PointCloudError, match=f"voxels, and at most {MAX_VOXELS:,} are clustered; set a larger"
    ) as refused:
        Clusterer(ClusterSettings()).find(points)
    assert refused.value.reason == "too_large"
    assert len(Clusterer(ClusterSettings(voxel_size_m=1.0, neighbour_distance_m=2.0)).find(points)) == 1


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"voxel_size_m": 0.0}, "voxel_size_m cannot be 0.0; it takes a number from 0.02 to 10"),
        ({"voxel_size_m": math.nan}, "voxel_size_m cannot be nan"),
        ({"min_points": 0}, "min_points cannot be 0"),
        ({"max_range_m": math.inf}, "max_range_m cannot be inf"),
        ({"neighbour_distance_m": 0.1}, "neighbour_distance_m cannot be 0.1 for voxels of 0.2 m; it takes 0.2 to 0.8"),
        ({"voxel_size_m": 0.1}, "neighbour_distance_m cannot be 0.6 for voxels of 0.1 m; it takes 0.1 to 0.4"),
        ({"min_z_m": 2.0}, "min_z_m is 2 and max_z_m is 2, so no point is between them"),
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        ClusterSettings(**values)


@pytest.mark.timeout(2 * CHILD_S)
def test_clustering_without_scipy_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['scipy'] = None\n"
        "from split_infer_ros.point_clouds.clustering import Clusterer\n"
        "from split_infer_ros.point_clouds.settings import ClusterSettings\n"
        "Clusterer(ClusterSettings())"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=CHILD_S, check=False
    )
    assert found.returncode == 1
    assert "Clustering point clouds needs the Python package scipy, which is not installed" in found.stderr
    assert "pip install scipy." in found.stderr


@pytest.mark.parametrize("is_flat", [False, True])
def test_pairs_are_estimated_without_looking_at_them(is_flat: bool) -> None:
    from scipy.spatial import cKDTree

    scale = np.array([10.0, 10.0, 0.0 if is_flat else 10.0])
    points = np.random.default_rng(0).random((4000, 3)) * scale
    actual = len(cKDTree(points).query_pairs(1.0))
    assert actual * (0.8 if not is_flat else 1.0) <= estimate_pairs(points, 1.0) <= 2 * actual


def test_voxels_with_too_many_neighbours_are_refused() -> None:
    """All voxels of a cube are occupied: 125,000 of them, which have about 110 neighbours each."""
    side = np.arange(50) * 0.2 + 0.1
    points = np.stack(np.meshgrid(side, side, side - 1.3, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.float32)
    settings = ClusterSettings(max_z_m=100.0)
    with pytest.raises(PointCloudError, match="pairs of neighbours, and at most 3,000,000 are clustered") as refused:
        Clusterer(settings).find(points)
    assert refused.value.reason is DropReason.TOO_LARGE
