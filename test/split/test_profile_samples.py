from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.measurements.key import Key
from split_infer_ros.split.profile import CoRun
from split_infer_ros.split.profile_samples import ALONE, Samples, from_records, make_profile, to_records
from split_infer_ros.split.split_points import SplitPoint

KEY = Key({"cpu": "x"}, {"torch": "2"})
TASK = {"model": "m"}
SPLIT_POINTS = [
    SplitPoint(name, (), n, (TensorSpec("t", (n + 1,), torch.float32),)) for n, name in enumerate(("a", "b"))
]


def samples(split_point: str, batch_size: int, backbone_s: float, head_s: float, **whole: tuple[float, ...]) -> Samples:
    times = (0.0, backbone_s, 0.0, head_s, 0.0)
    alone = {part: (seconds, seconds, 99.0) for part, seconds in zip(ALONE, times, strict=True)}
    return Samples(split_point, batch_size, {**alone, **whole})


ONE = [
    samples("a", 1, 1.0, 3.0),
    samples("b", 1, 2.0, 2.0, period=(3.5, 3.0, 3.0), backbone_busy=(3.0,), head_busy=(2.5,)),
]


def test_a_profile_is_of_medians_and_of_what_was_seen_where_stages_are_alike():
    far = samples("a", 2, 0.1, 6.0, backbone_busy=(5.0,), head_busy=(9.0,))
    profile = make_profile("m", "cpu", SPLIT_POINTS, [far, samples("b", 2, 3.0, 4.0), *ONE[::-1]])
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
    assert profile.co_run == CoRun.seen((2.0, 2.0), (3.0, 2.5))


def test_where_no_pipeline_was_run_the_stages_are_taken_for_independent():
    assert make_profile("m", "cpu", SPLIT_POINTS, ONE[:1]).co_run == CoRun(1, 1)


def test_samples_come_back_from_the_database():
    assert from_records(to_records(ONE, KEY, TASK), SPLIT_POINTS) == ONE


@pytest.mark.parametrize("lost", range(5))
def test_a_batch_size_of_which_anything_is_missing_is_left_out(lost):
    records = to_records([*ONE, *(replace(found, batch_size=2) for found in ONE)], KEY, TASK)
    found = from_records([*records[:lost], *records[lost + 1 :]], SPLIT_POINTS)
    assert {one.batch_size for one in found} == {2}
    assert from_records(to_records(ONE, KEY, TASK), [*SPLIT_POINTS, replace(SPLIT_POINTS[0], name="c")]) == []


def test_the_later_measurement_counts_and_nothing_of_the_earlier_one():
    later = [samples("a", 1, 5.0, 5.0), samples("b", 1, 6.0, 6.0)]
    assert from_records(to_records([*ONE, *later], KEY, TASK), SPLIT_POINTS) == later


def test_records_that_make_no_sense_are_left_out():
    (record, *_) = to_records(ONE, KEY, TASK)
    strange = [replace(record, config=config) for config in ({}, {"batch_size": "1", "split_point": 2, "part": []})]
    failed = replace(record, error="it crashed", costs=())
    assert from_records([*strange, *to_records(ONE, KEY, TASK), failed], SPLIT_POINTS) == ONE
