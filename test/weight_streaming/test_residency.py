"""What pipelines take of memory, and which plan an asynchronous one has."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.weight_streaming.delay_model import Machine, predict
from split_infer_ros.weight_streaming.packed_file import PAGE
from split_infer_ros.weight_streaming.residency import ASYNCHRONOUS, SYNCHRONOUS, TWO_STAGE, place
from split_infer_ros.weight_streaming.ring import circular, double_buffered

SIZES = [3 * PAGE, 4 * PAGE, 5 * PAGE, 2 * PAGE]
USES = [0, 1, 2, 3]


@pytest.mark.parametrize(("residency", "most"), [(TWO_STAGE, 5), (SYNCHRONOUS, 10), (ASYNCHRONOUS, 10)])
def test_each_pipeline_takes_its_multiple_of_the_largest_block(residency: str, most: int) -> None:
    assert place(residency, SIZES, USES).plan.capacity == most * PAGE


def test_where_large_blocks_do_not_fit_side_by_side_two_halves_take_turns() -> None:
    """In ten pages, 3 and 4 lie side by side and 5 across both, which has to wait for both."""
    even = Machine(tuple(float(size) for size in SIZES), 0.0, 1.0)
    ring = circular(SIZES, USES, 10 * PAGE)
    assert predict(ring, even) > predict(double_buffered(SIZES, USES), even)
    assert place(ASYNCHRONOUS, SIZES, USES).plan.offsets == (0, 5 * PAGE, 0, 5 * PAGE)
    assert place(ASYNCHRONOUS, SIZES, USES, 14.0 * PAGE).plan.offsets == (0, 3 * PAGE, 7 * PAGE, 12 * PAGE)


@given(st.lists(st.integers(1, 9).map(lambda n: n * PAGE), min_size=1, max_size=7), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_it_keeps_to_its_budget_and_is_no_slower_than_in_step(sizes: list[int], more: int) -> None:
    uses = list(range(len(sizes)))
    budget = 2 * max(sizes) + more * PAGE
    plan = place(ASYNCHRONOUS, sizes, uses, budget).plan
    even = Machine(tuple(map(float, sizes)), 0.0, 1.0)
    assert plan.feasible
    assert plan.capacity <= budget
    assert predict(plan, even) <= predict(double_buffered(sizes, uses), even) * (1 + 1e-9)


@pytest.mark.parametrize(("residency", "pages"), [(TWO_STAGE, 10), (SYNCHRONOUS, 20), (ASYNCHRONOUS, 10)])
def test_a_budget_for_two_sides_holds_two_rings_and_what_stays(residency: str, pages: int) -> None:
    """Blocks of hundreds of pages, so that the number in the sentence tells one side from two."""
    sizes, kept = [100 * size for size in SIZES], 100 * PAGE
    needed = 100 * pages * PAGE + kept
    assert place(residency, sizes, USES, needed, kept, sides=2).plan.capacity == 100 * pages // 2 * PAGE
    with pytest.raises(ConfigurationError, match=f"needs a weights_budget_mb of {math.ceil(needed / 1e5) / 10} "):
        place(residency, sizes, USES, needed - 1, kept, sides=2)


@pytest.mark.parametrize("budget", [15.0 * PAGE, 1e12])
def test_a_large_budget_is_taken_as_far_as_there_are_weights(budget: float) -> None:
    assert place(ASYNCHRONOUS, SIZES, USES, budget).plan.capacity == sum(SIZES)


def test_a_block_larger_than_all_others_does_not_make_the_ring_larger_than_the_model() -> None:
    assert place(ASYNCHRONOUS, [9 * PAGE, PAGE], [0, 1]).plan.capacity == 10 * PAGE
