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


def test_both_ways_find_nearly_the_same_large_objects(street: bench.Street) -> None:
    """A box may differ where two parts are about as far apart as neighbours may be."""
    points = read_points(street.usual)
    large, same = street.by_voxels(points), street.by_points(points)
    large = large.where(large.counts >= 200)
    distances = [
        np.abs(np.hstack((same.lows - low, same.highs - high))).max(1).min()
        for low, high in zip(large.lows, large.highs, strict=True)
    ]
    assert len(distances) >= 10
    assert np.mean(np.array(distances) <= street.settings.voxel_size_m) >= 0.75


def test_a_turn_times_each_way(street: bench.Street) -> None:
    seconds = street.turn(1)
    assert set(seconds) == {bench.GRID, bench.ALL, bench.DENSE_GRID, bench.READ}
    assert 0 < seconds[bench.READ] < seconds[bench.GRID]


def test_a_dense_cloud_has_a_million_beams(street: bench.Street) -> None:
    assert street.dense.height * street.dense.width == 1_000_320
