"""Seconds in which stages are busy, with batches at given times."""

from __future__ import annotations

import math

import pytest

from split_infer_ros.buffers.slots import Lease
from split_infer_ros.server.account import BusyStages
from split_infer_ros.server.timeline import Timeline

ONE, TWO = Lease(1, 0, 1), Lease(1, 1, 1)


def test_gap_between_threads_is_not_busy() -> None:
    stages = BusyStages()
    stages.enter(ONE, 0.0)
    stages.publish(ONE, 7.0)
    stages.leave(ONE, Timeline(closed=0.0, preprocessed=2.0, backbone_start=3.0, backbone_end=6.0), 8.0)
    stages.finish(ONE, Timeline(head_start=8.0, head_end=9.0, delivered=10.0), 11.0)
    assert stages.backbone_s(20.0) == 2.0 + 5.0  # handing over counts as work
    assert stages.head_s(20.0) == 2.0


def test_overlapping_batches_count_once() -> None:
    """A GPU overlaps batches: the next one is pre-processed and launched while this one is computed."""
    stages = BusyStages()
    stages.enter(ONE, 0.0)
    stages.enter(TWO, 1.0)
    stages.leave(ONE, Timeline(closed=0.0, preprocessed=1.0, backbone_start=1.0), 5.0)
    stages.leave(TWO, Timeline(closed=1.0, preprocessed=2.0, backbone_start=5.0), 9.0)
    assert stages.backbone_s(10.0) == 9.0
    for batch, published in ((ONE, 5.0), (TWO, 9.0)):
        stages.publish(batch, published)
    stages.finish(ONE, Timeline(head_start=5.0, head_end=10.0, delivered=12.0), 12.0)
    stages.finish(TWO, Timeline(head_start=10.0, head_end=11.0, delivered=14.0), 14.0)
    assert stages.head_s(20.0) == 9.0


def test_stage_is_busy_until_its_batch_is_done() -> None:
    stages = BusyStages()
    stages.enter(ONE, 0.0)
    assert (stages.backbone_s(3.0), stages.head_s(3.0)) == (3.0, 0.0)
    stages.leave(ONE, Timeline(preprocessed=1.0, backbone_start=1.0), 4.0)
    stages.publish(ONE, 4.0)
    assert (stages.backbone_s(6.0), stages.head_s(6.0)) == (4.0, 2.0)


@pytest.mark.parametrize("times", [Timeline(closed=1.0), Timeline(closed=1.0, preprocessed=3.0, backbone_start=3.0)])
def test_failed_batch_counts_until_it_failed(times: Timeline) -> None:
    stages = BusyStages()
    stages.enter(ONE, 1.0)
    stages.lose(ONE, 5.0)  # it was never published, so no head read it
    stages.leave(ONE, times, 5.0)
    assert (stages.backbone_s(9.0), stages.head_s(9.0)) == (4.0, 0.0)


def test_dead_head_is_busy_until_its_batch_is_lost() -> None:
    stages = BusyStages()
    stages.publish(ONE, 1.0)
    stages.lose(ONE, 3.0)
    stages.finish(ONE, Timeline(head_start=1.0, head_end=2.0, delivered=8.0), 9.0)  # too late
    assert stages.head_s(10.0) == 2.0


def test_head_reports_no_more_time_than_it_had() -> None:
    stages = BusyStages()
    for batch, start, end in ((ONE, -1e9, 4.0), (TWO, 3.0, math.inf)):
        stages.publish(batch, 2.0)
        stages.finish(batch, Timeline(head_start=start, head_end=end, delivered=end), 5.0)
    assert stages.head_s(10.0) == 3.0
