from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.cli.profile import describe
from split_infer_ros.split.profile import Profile, ProfilePoint, StageContention

SECONDS = st.floats(1e-4, 10)


def point(
    split_point: str, backbone_s: float, head_s: float, *, batch_size: int = 1, period_s: float = math.nan
) -> ProfilePoint:
    return ProfilePoint(
        split_point=split_point,
        batch_size=batch_size,
        bytes_per_image=1000,
        preprocess_s=0.0,
        backbone_s=backbone_s,
        hand_over_s=0.0,
        head_s=head_s,
        decode_s=0.0,
        period_s=period_s,
    )


@st.composite
def co_runs(draw: st.DrawFn) -> StageContention:
    """Draws rates between those of two processors and those of one, on which the stages take turns."""
    backbone = draw(st.floats(0.1, 1))
    return StageContention(backbone, draw(st.floats(max(0.1, 1 - backbone), 1)))


@pytest.mark.parametrize(
    ("contention", "alone_s", "busy_s"),
    [
        (StageContention(1, 1), (3, 2), (3, 2)),  # each stage has its own processor
        (StageContention(0.5, 0.5), (3, 2), (5, 4)),  # one processor, of which each stage gets half
        (StageContention(0.5, 1), (3, 2), (4, 2)),  # only the backbone is slowed down, by half of the head's time
        (StageContention(0.5, 1), (1, 4), (2, 4)),
        (StageContention(1, 0.5), (3, 2), (3, 4 - 0.5)),
        (StageContention(0.5, 0.5), (3, 0), (3, 0)),
    ],
)
def test_stages_slow_each_other_down(contention, alone_s, busy_s):
    assert contention.busy_s(*alone_s) == busy_s


def test_costs_between_measured_batch_sizes_are_estimated():
    points = point("a", 1.0, 2.0, period_s=3.0), point("a", 5.0, 4.0, batch_size=5), point("b", 9.0, 9.0, batch_size=3)
    profile = Profile("m", "cpu", points, StageContention())
    assert profile.estimate("a", 1) is points[0]
    assert profile.estimate("a", 5) is points[1]
    between = profile.estimate("a", 2)
    assert (between.backbone_s, between.head_s, between.batch_size) == (2.0, 2.5, 2)
    assert math.isnan(between.period_s)
    assert [profile.estimate("a", 6), profile.estimate("b", 2), profile.estimate("c", 1)] == [None] * 3


@given(co_runs(), SECONDS, SECONDS)
def test_a_period_lies_between_overlap_and_taking_turns(contention, backbone_s, head_s):
    busy = contention.busy_s(backbone_s, head_s)
    assert busy[0] >= backbone_s
    assert busy[1] >= head_s
    assert max(backbone_s, head_s) <= max(busy) <= (backbone_s + head_s) * (1 + 1e-9)


@given(co_runs(), SECONDS, SECONDS, st.floats(0, 5))
def test_times_alone_follow_from_busy_times(contention, backbone_s, head_s, idle_s):
    busy = contention.busy_s(backbone_s, head_s)
    assert contention.alone_s(*busy, max(busy)) == pytest.approx((backbone_s, head_s))
    assert contention.alone_s(backbone_s, head_s, backbone_s + head_s + idle_s) == pytest.approx((backbone_s, head_s))


@given(co_runs(), SECONDS, SECONDS)
def test_rates_follow_from_busy_times(contention, backbone_s, head_s):
    alone = backbone_s, head_s
    found = StageContention.from_times(alone, contention.busy_s(*alone))
    assert found.busy_s(*alone) == pytest.approx(contention.busy_s(*alone))
    assert (found.backbone, found.head) == pytest.approx((contention.backbone, contention.head), rel=1e-3)


def test_rates_are_between_a_minimum_and_one():
    assert StageContention.from_times((1.0, 1.0), (0.9, 0.5)) == StageContention(1, 1)
    assert StageContention.from_times((1.0, 1.0), (99.0, 1.0)).backbone == 0.05
    assert StageContention.from_times((1.0, 0.0), (1.0, 0.0)) == StageContention(1, 1)


def test_measured_periods_correct_the_predicted_ones():
    points = (point("a", 3, 1), point("b", 2, 2, period_s=3.0), point("c", 1, 3), point("a", 8, 1, batch_size=2))
    profile = Profile("m", "cpu", points=points, contention=StageContention())
    assert [profile.period_s(p) for p in points] == [4.5, 3.0, 4.5, 8.0]
    assert profile.throughput(points[1]) == 1 / 3
    assert profile.throughput(points[3]) == 2 / 8
    assert profile.batch_sizes == (1, 2)
    assert profile.point("b", 1) is points[1]
    assert profile.point("b", 2) is None


def test_a_profile_without_periods_predicts_the_same():
    points = (point("a", 3, 1), point("b", 2, 2, period_s=3.0))
    profile = Profile("m", "cpu", points=points, contention=StageContention(0.7, 0.8))
    rescaled = profile.without_periods()
    assert all(math.isnan(p.period_s) for p in rescaled.points)
    assert [rescaled.period_s(p) for p in rescaled.points] == pytest.approx([profile.period_s(p) for p in points])
    assert rescaled.points[1].backbone_s == pytest.approx(rescaled.points[1].head_s)


def test_stages_are_sums_of_their_parts():
    whole = ProfilePoint(
        split_point="a",
        batch_size=4,
        bytes_per_image=10,
        preprocess_s=1.0,
        backbone_s=2.0,
        hand_over_s=3.0,
        head_s=4.0,
        decode_s=5.0,
        period_s=9.0,
    )
    assert (whole.backbone_stage_s, whole.head_stage_s) == (6.0, 9.0)
    scaled = whole.scaled(2, 3)
    assert (scaled.backbone_stage_s, scaled.head_stage_s) == (12.0, 27.0)
    assert math.isnan(scaled.period_s)


def test_the_table_marks_the_chosen_point():
    points = (point("features.16", 0.03, 0.01), point("output", 0.02, 0, period_s=0.025))
    table = describe(
        Profile("m", "cpu", points=points, contention=StageContention(0.5, 0.75)), [points[1]]
    ).splitlines()
    assert "m on cpu" in table[0]
    assert "0.50" in table[0]
    assert "0.75" in table[0]
    assert "features.16" in table[2]
    assert not table[2].endswith("<")
    assert "output" in table[3]
    assert "40.0*" in table[3]
    assert table[3].endswith("<")
