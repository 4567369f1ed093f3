"""The two ways to find objects in a street agree, and each has its time."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy", reason="test_point_clouds.py needs scipy")
from benchmarks.point_clouds import __main__ as bench
from split_infer_ros.point_clouds.reading import read_points
from split_infer_ros.point_clouds.settings import ClusterSettings


@pytest.fixture(scope="module")
def street() -> bench.Street:
    return bench.Street(ClusterSettings())


def test_both_ways_find_the_same_large_objects(street: bench.Street) -> None:
    points = read_points(street.usual)
    large, same = street.by_voxels(points), street.by_points(points)
    margin = street.settings.voxel_size_m  # a voxel's centroid may be nearer to another object than its points are
    for low, high in zip(large.lows[large.counts >= 500], large.highs[large.counts >= 500], strict=True):
        assert (np.abs(np.hstack((same.lows - low, same.highs - high))).max(1) <= margin).any()


def test_a_turn_times_each_way(street: bench.Street) -> None:
    seconds = street.turn(1)
    assert set(seconds) == {bench.GRID, bench.ALL, bench.DENSE_GRID, bench.READ}
    assert 0 < seconds[bench.READ] < seconds[bench.GRID]


def test_a_dense_cloud_has_a_million_beams(street: bench.Street) -> None:
    assert street.dense.height * street.dense.width == 1_000_320
