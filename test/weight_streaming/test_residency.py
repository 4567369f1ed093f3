"""The memory of each pipeline, and the plan of the asynchronous one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.weight_streaming.delay_model import StreamingProfile, predict_delay
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.ring_plan import plan_double_buffer, plan_ring

SIZES = [3 * PAGE, 4 * PAGE, 5 * PAGE, 2 * PAGE]
USES = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("residency", "pages"), [(Residency.TWO_STAGE, 5), (Residency.SYNCHRONOUS, 10), (Residency.ASYNCHRONOUS, 5)]
)
def test_ring_is_a_multiple_of_the_largest_block(residency: Residency, pages: int) -> None:
    assert plan_memory(residency, SIZES, USES).ring.capacity == pages * PAGE


def test_pipelines_take_the_memory_that_the_paper_gives_them() -> None:
    """YOLOv4's largest layer has 18.0 MB. The pipelines take 72.0, 36.0 and 18.0 MB."""
    largest = 18_000_000 // PAGE * PAGE
    sizes, uses = [largest // 3, largest, largest // 2, largest], [0, 1, 2, 3]
    for residency, is_copied, places in (
        (Residency.SYNCHRONOUS, True, 4),
        (Residency.ASYNCHRONOUS, True, 2),
        (Residency.TWO_STAGE, False, 1),
    ):
        assert plan_memory(residency, sizes, uses, is_copied=is_copied).ring_bytes == places * largest


def test_synchronous_refuses_a_model_that_needs_two_layers_at_once() -> None:
    with pytest.raises(ConfigurationError, match="this model needs several layers at once: take asynchronous"):
        plan_memory(Residency.SYNCHRONOUS, [PAGE, PAGE], [0, 1, 0])


def test_two_buffers_replace_a_ring_that_cannot_read_ahead() -> None:
    """In ten pages, blocks of 3 and 4 pages lie side by side. The block of 5 overlaps and waits for both."""
    balanced = StreamingProfile(tuple(float(size) for size in SIZES), 0.0, 1.0)
    ring = plan_ring(SIZES, USES, 10 * PAGE)
    buffers = plan_double_buffer(SIZES, USES)
    assert predict_delay(MemoryPlan(0, ring), balanced) > predict_delay(MemoryPlan(0, buffers), balanced)
    assert plan_memory(Residency.ASYNCHRONOUS, SIZES, USES, budget_bytes=10.0 * PAGE).ring.offsets == (
        0,
        5 * PAGE,
        0,
        5 * PAGE,
    )
    assert plan_memory(Residency.ASYNCHRONOUS, SIZES, USES, budget_bytes=14.0 * PAGE).ring.offsets == (
        0,
        3 * PAGE,
        7 * PAGE,
        12 * PAGE,
    )


@given(st.lists(st.integers(1, 9).map(lambda n: n * PAGE), min_size=1, max_size=7), st.integers(0, 30))
@settings(max_examples=60)
def test_asynchronous_keeps_its_budget_and_beats_two_buffers(sizes: list[int], more: int) -> None:
    uses = list(range(len(sizes)))
    budget = 2 * max(sizes) + more * PAGE
    ring = plan_memory(Residency.ASYNCHRONOUS, sizes, uses, budget_bytes=budget).ring
    balanced = StreamingProfile(tuple(map(float, sizes)), 0.0, 1.0)
    assert ring.is_feasible
    assert ring.capacity <= budget
    buffers = MemoryPlan(0, plan_double_buffer(sizes, uses))
    assert predict_delay(MemoryPlan(0, ring), balanced) <= predict_delay(buffers, balanced) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("residency", "pages"), [(Residency.TWO_STAGE, 10), (Residency.SYNCHRONOUS, 20), (Residency.ASYNCHRONOUS, 10)]
)
def test_budget_for_two_sides_holds_two_rings_and_kept_weights(residency: Residency, pages: int) -> None:
    """Blocks have hundreds of pages, so that the number in the message differs between one side and two."""
    sizes, kept = [100 * size for size in SIZES], 100 * PAGE
    needed = 100 * pages * PAGE + kept
    memory_plan = plan_memory(residency, sizes, USES, budget_bytes=needed, kept_bytes=kept, is_copied=True)
    assert memory_plan.ring.capacity == 100 * pages // 2 * PAGE
    assert memory_plan.ring_bytes + kept == needed
    with pytest.raises(ConfigurationError, match=f"needs a weights_budget_mb of {math.ceil(needed / 1e5) / 10} "):
        plan_memory(residency, sizes, USES, budget_bytes=needed - 1, kept_bytes=kept, is_copied=True)


@pytest.mark.parametrize("budget", [15.0 * PAGE, 1e12])
def test_ring_takes_no_more_than_all_weights(budget: float) -> None:
    assert plan_memory(Residency.ASYNCHRONOUS, SIZES, USES, budget_bytes=budget).ring.capacity == sum(SIZES)


def test_dominant_block_does_not_make_the_ring_exceed_the_model() -> None:
    memory_plan = plan_memory(Residency.ASYNCHRONOUS, [9 * PAGE, PAGE], [0, 1], budget_bytes=18.0 * PAGE)
    assert memory_plan.ring.capacity == 10 * PAGE
