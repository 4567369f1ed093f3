from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.split.profile import CoRun, Profile, ProfilePoint, describe

seconds = st.floats(1e-4, 10)


def point(
    split_point: str, backbone_s: float, head_s: float, batch_size: int = 1, period_s: float = math.nan
) -> ProfilePoint:
    return ProfilePoint(split_point, batch_size, 1000, 0.0, backbone_s, 0.0, head_s, 0.0, period_s)


@st.composite
def co_runs(draw: st.DrawFn) -> CoRun:
    """From two processors to one: together never slower than by turns."""
    backbone = draw(st.floats(0.1, 1))
    return CoRun(backbone, draw(st.floats(max(0.1, 1 - backbone), 1)))


@pytest.mark.parametrize(
    ("co_run", "stages", "busy"),
    [
        (CoRun(1, 1), (3, 2), (3, 2)),  # their own processors
        (CoRun(0.5, 0.5), (3, 2), (5, 4)),  # one processor: the shorter stage lasts as long as both get half of it
        (CoRun(0.5, 1), (3, 2), (4, 2)),  # only the backbone is held up, by half of the head's time
        (CoRun(0.5, 1), (1, 4), (2, 4)),
        (CoRun(1, 0.5), (3, 2), (3, 4 - 0.5)),
        (CoRun(0.5, 0.5), (3, 0), (3, 0)),
    ],
)
def test_stages_that_run_together(co_run, stages, busy):
    assert co_run.busy(*stages) == busy


@given(co_runs(), seconds, seconds)
def test_a_saturated_pipeline_lies_between_overlap_and_turns(co_run, backbone_s, head_s):
    busy = co_run.busy(backbone_s, head_s)
    assert busy[0] >= backbone_s
    assert busy[1] >= head_s
    assert max(backbone_s, head_s) <= max(busy) <= (backbone_s + head_s) * (1 + 1e-9)


@given(co_runs(), seconds, seconds, st.floats(0, 5))
def test_what_was_seen_leads_back_to_each_stage_alone(co_run, backbone_s, head_s, idle_s):
    busy = co_run.busy(backbone_s, head_s)
    assert co_run.alone(*busy, max(busy)) == pytest.approx((backbone_s, head_s))
    assert co_run.alone(backbone_s, head_s, backbone_s + head_s + idle_s) == pytest.approx((backbone_s, head_s))


@given(co_runs(), seconds, seconds)
def test_the_rates_can_be_told_from_what_was_seen(co_run, backbone_s, head_s):
    alone = backbone_s, head_s
    found = CoRun.seen(alone, co_run.busy(*alone))
    assert found.busy(*alone) == pytest.approx(co_run.busy(*alone))
    assert (found.backbone, found.head) == pytest.approx((co_run.backbone, co_run.head), rel=1e-3)


def test_rates_stay_within_reason():
    assert CoRun.seen((1.0, 1.0), (0.9, 0.5)) == CoRun(1, 1)
    assert CoRun.seen((1.0, 1.0), (99.0, 1.0)).backbone == 0.05
    assert CoRun.seen((1.0, 0.0), (1.0, 0.0)) == CoRun(1, 1)


def test_a_measured_period_counts_and_corrects_the_predicted_ones():
    points = (point("a", 3, 1), point("b", 2, 2, period_s=3.0), point("c", 1, 3), point("a", 8, 1, batch_size=2))
    profile = Profile("m", "cpu", points, CoRun())
    assert [profile.period_s(p) for p in points] == [4.5, 3.0, 4.5, 8.0]
    assert profile.throughput(points[1]) == 1 / 3
    assert profile.throughput(points[3]) == 2 / 8
    assert profile.batch_sizes == (1, 2)
    assert profile.point("b", 1) is points[1]
    assert profile.point("b", 2) is None


def test_the_stages_alone_can_tell_what_was_measured_of_the_whole():
    points = (point("a", 3, 1), point("b", 2, 2, period_s=3.0))
    profile = Profile("m", "cpu", points, CoRun(0.7, 0.8))
    told = profile.by_stages()
    assert all(math.isnan(p.period_s) for p in told.points)
    assert [told.period_s(p) for p in told.points] == pytest.approx([profile.period_s(p) for p in points])
    assert told.points[1].backbone_s == pytest.approx(told.points[1].head_s)


def test_a_point_takes_the_place_of_its_like():
    points = (point("a", 3, 1), point("a", 3, 1, batch_size=2))
    profile = Profile("m", "cpu", points, CoRun()).with_point(replace(points[1], period_s=7.0))
    assert [p.period_s for p in profile.points] == [pytest.approx(math.nan, nan_ok=True), 7.0]


def test_stages_are_sums_of_their_parts():
    whole = ProfilePoint("a", 4, 10, 1.0, 2.0, 3.0, 4.0, 5.0, 9.0)
    assert (whole.backbone_stage_s, whole.head_stage_s) == (6.0, 9.0)
    scaled = whole.scaled(2, 3)
    assert (scaled.backbone_stage_s, scaled.head_stage_s) == (12.0, 27.0)
    assert math.isnan(scaled.period_s)


def test_the_table_names_every_point_and_marks_the_chosen_one():
    points = (point("features.16", 0.03, 0.01), point("output", 0.02, 0, 1, 0.025))
    table = describe(Profile("m", "cpu", points, CoRun(0.5, 0.75)), [points[1]]).splitlines()
    assert "m on cpu" in table[0]
    assert "0.50" in table[0]
    assert "0.75" in table[0]
    assert "features.16" in table[2]
    assert not table[2].endswith("<")
    assert "output" in table[3]
    assert "40.0*" in table[3]
    assert table[3].endswith("<")
