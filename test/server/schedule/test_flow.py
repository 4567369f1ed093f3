"""Whether another batch may begin, on timelines that are simulated."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.server.schedule.flow import Flow

SECONDS = st.floats(0.001, 0.1)


def simulate(backbone_s: float, head_s: float, slots: int = 8, count: int = 200, depth: int = 1) -> tuple[float, float]:
    """Runs batches as they are admitted. Returns the mean seconds between results, and the longest wait for the head.

    The backbone takes its batches one after the other; ``depth`` of them may be given to it.
    """
    flow, now = Flow(), 0.0
    backbone_free = head_free = 0.0
    events: list[float] = []
    batches: list[tuple[float, float]] = []  # when each reaches the head, and when it is back
    waits, ends = [], []
    while len(ends) < count:
        batches = [(at, back) for at, back in batches if back > now]
        behind = sum(at <= now for at, _ in batches)
        in_backbone = len(batches) - behind
        if in_backbone < depth and len(batches) < slots and flow.admits(in_backbone, behind):
            reaches = max(now, backbone_free) + backbone_s
            starts = max(reaches, head_free)
            backbone_free, head_free = reaches, starts + head_s
            batches.append((reaches, head_free))
            waits.append(starts - reaches)
            ends.append(head_free)
            flow.note(backbone_s, head_s, 0.0)
            heapq.heappush(events, reaches)
            heapq.heappush(events, head_free)
        else:
            now = heapq.heappop(events)
    return (ends[-1] - ends[count // 2]) / (count - 1 - count // 2), max(waits[count // 2 :])


@given(SECONDS, SECONDS, st.sampled_from([1, 3]))
def test_the_slower_stage_never_starves_and_no_batch_waits_long(backbone_s: float, head_s: float, depth: int) -> None:
    interval_s, wait_s = simulate(backbone_s, head_s, depth=depth)
    assert interval_s == pytest.approx(max(backbone_s, head_s), rel=0.05)
    assert wait_s <= 2 * head_s


def test_nothing_is_held_back_before_times_are_known() -> None:
    assert all(Flow().admits(in_backbone, behind) for in_backbone in range(5) for behind in range(5))


def test_a_slow_head_gets_one_batch_ahead() -> None:
    flow = Flow()
    flow.note(0.01, 0.1, 0.02)
    assert [flow.admits(0, behind) for behind in range(4)] == [True, True, False, False]
