"""Predicted delays of pipelines that copy blocks to a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.weight_streaming.delay_model import StreamingProfile, predict_delay
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.residency import Residency, plan_memory

READ_S, COPY_S, RUN_S = 1.0, 0.5, 2.0  # of a page


def plan_of(residency: Residency, pages: list[int], budget_pages: float = float("inf")) -> MemoryPlan:
    sizes = [PAGE * number for number in pages]
    budget_bytes = budget_pages * PAGE
    return plan_memory(residency, sizes, range(len(sizes)), budget_bytes=budget_bytes, is_copied=True)


def profile_of(*step_s: float, tail_s: float = 0.0) -> StreamingProfile:
    return StreamingProfile(step_s, tail_s, PAGE / READ_S, copy_bandwidth=PAGE / COPY_S)


def test_one_place_a_side_overlaps_reading_with_running() -> None:
    """A block is read while the one before runs. It is copied when that one has run."""
    plan = plan_of(Residency.ASYNCHRONOUS, [1, 1, 1])
    assert predict_delay(plan, profile_of(RUN_S, RUN_S, RUN_S)) == pytest.approx(3 * (RUN_S + COPY_S))
    assert predict_delay(plan, profile_of(0.1, 0.1, 0.1)) == pytest.approx(3 * (READ_S + COPY_S))


def test_two_places_a_side_hide_copies_as_well() -> None:
    plan = plan_of(Residency.ASYNCHRONOUS, [1, 1, 1, 1], budget_pages=4)
    assert predict_delay(plan, profile_of(*[RUN_S] * 4)) == pytest.approx(4 * RUN_S)


def test_cycle_takes_its_longest_stage() -> None:
    """In cycles 0 to 3, blocks of 1, 2, 3 and 4 pages run, are copied, and are read, each stage one block ahead."""
    plan = plan_of(Residency.SYNCHRONOUS, [1, 2, 3, 4])
    cycles = [(1.0, 1.0, 3.0), (5.0, 1.5, 4.0), (1.0, 2.0, 1.0), (1.0, 0.5, 2.0)]  # run, copy the next, read after it
    assert predict_delay(plan, profile_of(1.0, 5.0, 1.0, 1.0)) == pytest.approx(sum(map(max, cycles)))


def test_odd_number_of_blocks_has_an_empty_cycle() -> None:
    """While the last block runs, the first is read. While nothing runs, the first is copied and the second is read."""
    plan = plan_of(Residency.SYNCHRONOUS, [1, 1, 1])
    assert predict_delay(plan, profile_of(RUN_S, RUN_S, RUN_S)) == pytest.approx(3 * RUN_S + max(COPY_S, READ_S))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=7),
    st.data(),
    st.sampled_from([Residency.SYNCHRONOUS, Residency.ASYNCHRONOUS]),
)
@settings(max_examples=100)
def test_delay_lies_between_its_bounds(pages: list[int], data: st.DataObject, residency: Residency) -> None:
    """The longest stage is the lower bound, and all stages one after the other the upper one."""
    step_s = data.draw(st.lists(st.floats(0.0, 10.0), min_size=len(pages), max_size=len(pages)))
    profile = profile_of(*step_s, tail_s=data.draw(st.floats(0.0, 3.0)))
    plan = plan_of(residency, pages)
    stages = profile.compute_s, READ_S * sum(pages), COPY_S * sum(pages)
    assert max(stages) * (1 - 1e-9) <= predict_delay(plan, profile) <= sum(stages) * (1 + 1e-9)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(0, 20))
@settings(max_examples=60)
def test_free_copies_cost_no_more_than_two_stages(pages: list[int], more: int) -> None:
    """A third stage that takes no time gives reading a second place for each block."""
    profile = replace(profile_of(*map(float, pages)), copy_bandwidth=1e30)
    plan = plan_of(Residency.ASYNCHRONOUS, pages, budget_pages=2.0 * (max(pages) + more))
    two_stages = MemoryPlan(0, plan.ring)
    assert predict_delay(plan, profile) <= predict_delay(two_stages, profile) * (1 + 1e-9)
