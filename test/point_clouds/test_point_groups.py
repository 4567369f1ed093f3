"""Groups of points are merged by keys, and know their number of points, their centroid and their box."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.point_clouds.point_groups import PointGroups


@given(count=st.integers(0, 60), keys=st.integers(1, 20), seed=st.integers(0, 2**32 - 1))
def test_a_merged_group_has_the_points_of_its_parts(count: int, keys: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.uniform(-100, 100, (count, 3)).astype(np.float32)
    first = rng.integers(-keys, keys, count)
    parts = PointGroups.of_points(points).merged(first)
    # Each part's second key is its first one, halved: so the points with equal halves are in one group at last.
    found = parts.merged(np.unique(first) // 2)
    halves = np.unique(first // 2)
    assert len(found) == len(halves)
    for index, key in enumerate(halves):
        own = points[first // 2 == key]
        assert found.counts[index] == len(own)
        assert found.lows[index].tolist() == own.min(axis=0).tolist()
        assert found.highs[index].tolist() == own.max(axis=0).tolist()
        # Sums of 60 float64 below 100: rounding is less than 60 * 6000 * 2^-53.
        assert np.allclose(found.centroids[index], own.mean(axis=0, dtype=np.float64), rtol=0, atol=1e-9)


def test_some_groups_are_taken_by_flags_and_by_indices() -> None:
    groups = PointGroups.of_points(np.arange(12, dtype=np.float32).reshape(4, 3)).merged(np.array([3, 1, 1, 2]))
    assert groups.counts.tolist() == [2, 1, 1]
    assert groups.where(groups.counts > 1).lows.tolist() == [[3, 4, 5]]
    assert groups.where(np.array([2, 0])).counts.tolist() == [1, 2]
