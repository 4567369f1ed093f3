"""Points are read from any layout of a PointCloud2, and a cloud that cannot be read has a sentence and a drop reason.

Every coordinate that float32 holds is read as it was written: equality is due. Others are rounded as NumPy rounds them.
"""

from __future__ import annotations

import array
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from point_cloud_values import LETTERS, CloudValues, FieldValues, cloud_of, write_cloud

from split_infer_ros.errors import PointCloudError
from split_infer_ros.point_clouds.reading import read_points

FLOAT64 = 8
GOOD = cloud_of(np.arange(12, dtype=np.float32).reshape(4, 3))


def values_of(datatype: int) -> st.SearchStrategy[float]:
    """Values of a datatype, with NaN, infinity, and numbers that are too large for float32."""
    dtype = np.dtype(LETTERS[datatype])
    if dtype.kind == "f":
        return st.floats(width=8 * dtype.itemsize)
    limits = np.iinfo(dtype)
    return st.integers(int(limits.min), int(limits.max))


@st.composite
def clouds(draw: st.DrawFn) -> tuple[CloudValues, list[list[float]]]:
    """A cloud in a drawn layout, and its points in their order."""
    kinds = {name: draw(st.sampled_from(sorted(LETTERS))) for name in "xyz"}
    fields, end = [], draw(st.integers(0, 5))
    for name in draw(st.permutations(["x", "y", "z", "intensity", "ring"])):
        kind = kinds.get(name, draw(st.sampled_from([0, 2, 7, 200])))  # of others, nobody knows the datatype
        fields.append(FieldValues(name, end, kind, 1 if name in kinds else draw(st.integers(0, 9))))
        end += struct_size(kind) + draw(st.integers(0, 3))
    height, width = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    point = st.tuples(*(values_of(kinds[name]) for name in "xyz"))
    rows = draw(st.lists(st.lists(point, min_size=width, max_size=width), min_size=height, max_size=height))
    cloud = write_cloud(
        rows,
        draw(st.permutations(fields)),
        point_step=end + draw(st.integers(0, 4)),
        padding=draw(st.integers(0, 7)),
        is_bigendian=draw(st.booleans()),
    )
    return cloud, [list(point) for row in rows for point in row]


def struct_size(kind: int) -> int:
    return np.dtype(LETTERS[kind]).itemsize if kind in LETTERS else 1


def as_float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float64(value).astype(np.float32))


@given(clouds())
def test_points_of_every_layout_are_read(drawn: tuple[CloudValues, list[list[float]]]) -> None:
    cloud, points = drawn
    expected = [found for point in points if all(map(math.isfinite, found := [*map(as_float32, point)]))]
    if not expected:
        with pytest.raises(PointCloudError, match="points has finite coordinates") as refused:
            read_points(cloud)
        assert refused.value.reason == "empty_cloud"
        return
    read = read_points(cloud)
    assert (read.dtype, read.shape) == (np.float32, (len(expected), 3))
    assert read.tolist() == expected


@pytest.mark.parametrize("container", [bytes, bytearray, memoryview, lambda data: array.array("B", data)])
def test_data_of_every_library_is_read(container: Any) -> None:
    expected = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert np.array_equal(read_points(replace(GOOD, data=container(GOOD.data))), expected)
    assert np.array_equal(read_points(replace(GOOD, data=np.frombuffer(GOOD.data, np.uint8))), expected)


def test_points_do_not_change_with_the_message() -> None:
    data = bytearray(GOOD.data)
    read = read_points(replace(GOOD, data=data))
    before = read.copy()
    data[:] = bytes(len(data))
    assert np.array_equal(read, before)


def test_bytes_after_the_last_row_are_ignored() -> None:
    assert np.array_equal(read_points(replace(GOOD, data=GOOD.data + b"\xff" * 99)), read_points(GOOD))


def test_a_cloud_of_a_depth_camera_keeps_its_measured_points() -> None:
    organised = np.random.default_rng(0).standard_normal((48, 64, 3)).astype(np.float32)
    is_missing = np.random.default_rng(1).random((48, 64)) < 0.3
    organised[is_missing] = np.nan
    assert np.array_equal(read_points(cloud_of(organised)), organised[~is_missing])


def test_an_infinite_coordinate_leaves_out_its_point() -> None:
    points = np.ones((5, 3), np.float32)
    points[[0, 1, 2], [0, 1, 2]] = np.nan, np.inf, -np.inf
    assert len(read_points(cloud_of(points))) == 2


def fields(**changed: FieldValues | None) -> tuple[FieldValues, ...]:
    named = {each.name: each for each in GOOD.fields} | changed
    return tuple(each for each in named.values() if each is not None)


REFUSED = {
    "no columns": (replace(GOOD, width=0), "empty_cloud", "A point cloud of 0x1 points shows nothing."),
    "no rows": (replace(GOOD, height=0), "empty_cloud", "4x0 points"),
    "no data": (replace(GOOD, data=b""), "truncated_cloud", "has 0 bytes; 1 rows of 48 bytes need 48."),
    "NaN alone": (cloud_of(np.full((7, 3), np.nan)), "empty_cloud", "None of the point cloud's 7 points"),
    "one NaN each": (cloud_of(np.array([[1, np.nan, 2]])), "empty_cloud", "None of the point cloud's 1 points"),
    "no fields": (replace(GOOD, fields=()), "bad_fields", "field x is there 0 times, .*; the fields are: none"),
    "no z": (replace(GOOD, fields=fields(z=None)), "bad_fields", "field z is there 0 times.*the fields are: x, y"),
    "other names": (
        replace(GOOD, fields=[FieldValues("range" * 100, 0)] * 10**5),
        "bad_fields",
        r"the fields are: rangerange.{70}\.\.\.\.$",
    ),
    "y twice": (replace(GOOD, fields=(*fields(), FieldValues("y", 0))), "bad_fields", "field y is there 2 times"),
    "datatype 0": (
        replace(GOOD, fields=fields(y=FieldValues("y", 4, 0))),
        "bad_fields",
        "field y has the datatype 0; sensor_msgs/PointField has 1 to 8",
    ),
    "datatype 9": (replace(GOOD, fields=fields(y=FieldValues("y", 4, 9))), "bad_fields", "has the datatype 9"),
    "three values": (replace(GOOD, fields=fields(x=FieldValues("x", 0, 7, 3))), "bad_fields", "has 3 values a point"),
    "past the point": (
        replace(GOOD, fields=fields(z=FieldValues("z", 9))),
        "bad_fields",
        "field z has the bytes 9 to 13 of a point, and a point has 12",
    ),
    "half past the point": (replace(GOOD, fields=fields(z=FieldValues("z", 8, FLOAT64))), "bad_fields", "8 to 16"),
    "far past the point": (replace(GOOD, fields=fields(z=FieldValues("z", 2**32 - 1))), "bad_fields", "a point has 12"),
    "before the point": (replace(GOOD, fields=fields(x=FieldValues("x", -4))), "bad_fields", "the bytes -4 to 0"),
    "no point_step": (replace(GOOD, point_step=0), "bad_fields", "and a point has 0"),
    "row_step too small": (
        replace(GOOD, row_step=47),
        "bad_step",
        "row_step is 47 bytes, but a row of 4 points of 12 bytes has 48.",
    ),
    "no row_step": (replace(GOOD, row_step=0), "bad_step", "row_step is 0 bytes"),
    "one byte short": (replace(GOOD, data=GOOD.data[:-1]), "truncated_cloud", "has 47 bytes"),
    "one row short": (replace(GOOD, height=2), "truncated_cloud", "2 rows of 48 bytes need 96."),
    "large steps": (replace(GOOD, point_step=2**32 - 1, row_step=2**40), "truncated_cloud", "has 48 bytes"),
    "four thousand million points": (
        replace(GOOD, height=2**32 - 1, width=2**32 - 1, row_step=2**32 - 1),
        "too_large",
        "exceeds the limit of 1,200,000 points",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_cloud_that_cannot_be_read_says_why(case: str) -> None:
    cloud, reason, sentence = REFUSED[case]
    with pytest.raises(PointCloudError, match=sentence) as refused:
        read_points(cloud)
    assert refused.value.reason == reason
    assert str(refused.value).endswith(".")


def test_the_limit_of_points_is_the_caller_s() -> None:
    assert len(read_points(GOOD, max_points=4)) == 4
    with pytest.raises(PointCloudError, match="4x1 points exceeds the limit of 3 points"):
        read_points(GOOD, max_points=3)


@given(
    height=st.integers(0, 2**32 - 1),
    width=st.integers(0, 2**32 - 1),
    steps=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    places=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 9)), max_size=4),
)
def test_drawn_numbers_are_read_or_refused(
    height: int, width: int, steps: tuple[int, int], places: list[tuple[int, int, int]]
) -> None:
    for sizes in ((height, width), (height % 5, width % 5)):
        for point_step, row_step in (steps, (steps[0] % 20, steps[1] % 60)):
            found = [
                FieldValues(name, offset % 24, kind % 10, count)
                for name, (offset, kind, count) in zip("xyzx", places, strict=False)
            ]
            cloud = CloudValues(*sizes, bytes(100), point_step, row_step, False, found)
            with suppress(PointCloudError):
                assert len(read_points(cloud)) <= sizes[0] * sizes[1]
