from __future__ import annotations

import math
from dataclasses import replace

import pytest

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.measurements.key import Key
from split_infer_ros.split.profile import Profile, StageContention
from split_infer_ros.split.profile_samples import (
    TIMED_ALONE,
    PointSamples,
    ProfilePart,
    from_records,
    make_profile,
    to_records,
)
from split_infer_ros.split.split_points import SplitPoint

KEY = Key({"cpu": "x"}, {"torch": "2"})
TASK = {"model": "m"}
SPLIT_POINTS = [
    SplitPoint(name, aliases=(), position=position, tensors=(TensorSpec("t", (position + 1,), FLOAT32),))
    for position, name in enumerate(("a", "b"))
]


def samples(
    split_point: str, batch_size: int, backbone_s: float, head_s: float, **pipeline: tuple[float, ...]
) -> PointSamples:
    times = (0.0, backbone_s, 0.0, head_s, 0.0)
    alone = {part: (seconds, seconds, 99.0) for part, seconds in zip(TIMED_ALONE, times, strict=True)}
    run = {ProfilePart(name): seconds for name, seconds in pipeline.items()}
    return PointSamples(split_point, batch_size, {**alone, **run})


def profile_of(point_samples: list[PointSamples]) -> Profile:
    return make_profile(model="m", device="cpu", split_points=SPLIT_POINTS, samples=point_samples)


ONE = [
    samples("a", 1, 1.0, 3.0),
    samples("b", 1, 2.0, 2.0, period=(3.5, 3.0, 3.0), backbone_busy=(3.0,), head_busy=(2.5,)),
]


def test_a_profile_has_medians_and_the_balanced_rates():
    unbalanced = samples("a", 2, 0.1, 6.0, backbone_busy=(5.0,), head_busy=(9.0,))
    profile = profile_of([unbalanced, samples("b", 2, 3.0, 4.0), *ONE[::-1]])
    assert [(point.batch_size, point.split_point) for point in profile.points] == [
        (1, "a"),
        (1, "b"),
        (2, "a"),
        (2, "b"),
    ]
    first, second = profile.points[:2]
    assert (first.backbone_s, first.head_s, first.bytes_per_image) == (1.0, 3.0, 4)
    assert math.isnan(first.period_s)
    assert (second.period_s, second.bytes_per_image) == (3.0, 8)
    assert profile.contention == StageContention.from_times((2.0, 2.0), (3.0, 2.5))


def test_without_a_pipeline_stages_are_independent():
    assert profile_of(ONE[:1]).contention == StageContention(1, 1)


def test_samples_come_back_from_the_database():
    assert from_records(to_records(ONE, KEY, TASK), SPLIT_POINTS) == ONE


@pytest.mark.parametrize("lost", range(5))
def test_incomplete_batch_sizes_are_left_out(lost):
    records = to_records([*ONE, *(replace(found, batch_size=2) for found in ONE)], KEY, TASK)
    found = from_records([*records[:lost], *records[lost + 1 :]], SPLIT_POINTS)
    assert {each.batch_size for each in found} == {2}
    assert from_records(to_records(ONE, KEY, TASK), [*SPLIT_POINTS, replace(SPLIT_POINTS[0], name="c")]) == []


def test_a_later_measurement_replaces_the_earlier_one():
    later = [samples("a", 1, 5.0, 5.0), samples("b", 1, 6.0, 6.0)]
    assert from_records(to_records([*ONE, *later], KEY, TASK), SPLIT_POINTS) == later


def test_malformed_records_are_left_out():
    (record, *_) = to_records(ONE, KEY, TASK)
    strange = [replace(record, config=config) for config in ({}, {"batch_size": "1", "split_point": 2, "part": []})]
    failed = replace(record, error="it crashed", costs=())
    assert from_records([*strange, *to_records(ONE, KEY, TASK), failed], SPLIT_POINTS) == ONE
