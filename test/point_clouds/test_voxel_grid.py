"""The points of a voxel become one group. Python's own floor of a quotient says which points share a voxel."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.point_clouds.voxel_grid import group_by_voxel

SIZES = st.sampled_from([0.02, 0.1, 0.25, 1.0, 3.5])
COORDINATES = st.floats(-1000, 1000, width=32)
POINTS = st.lists(st.tuples(COORDINATES, COORDINATES, COORDINATES), max_size=40)


@given(points=POINTS, size_m=SIZES)
def test_each_occupied_voxel_is_a_group(points: list[tuple[float, float, float]], size_m: float) -> None:
    array = np.array(points, np.float32).reshape(-1, 3)
    voxels = group_by_voxel(array, size_m)
    # The quotient is rounded to float32, as the grid's is: a point on a border is then on the same side.
    expected = Counter(tuple(math.floor(np.float32(value) / np.float32(size_m)) for value in point) for point in points)
    assert sorted(voxels.counts.tolist()) == sorted(expected.values())
    # (A side is a voxel's, and what two quotients of at most 50,000 are rounded by.)
    sizes = voxels.highs.astype(np.float64) - voxels.lows
    assert (sizes <= size_m * (1 + 2 * 50_000 * 2**-24)).all()


def test_the_grid_is_the_same_for_all_clouds() -> None:
    points = np.random.default_rng(0).uniform(-20, 20, (500, 3)).astype(np.float32)
    alone = group_by_voxel(points, 0.5)
    beside_others = group_by_voxel(np.append(points, [[300.0, -300.0, 70.0]], axis=0).astype(np.float32), 0.5)
    assert len(beside_others) == len(alone) + 1
    assert Counter(map(tuple, alone.lows.tolist())) <= Counter(map(tuple, beside_others.lows.tolist()))


def test_the_order_of_points_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(-20, 20, (500, 3)).astype(np.float32)
    found, again = group_by_voxel(points, 2.0), group_by_voxel(rng.permutation(points), 2.0)
    assert np.array_equal(found.counts, again.counts)
    assert np.array_equal(found.lows, again.lows)
    assert np.array_equal(found.highs, again.highs)
