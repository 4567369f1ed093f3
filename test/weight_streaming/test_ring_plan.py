"""Plans of the ring buffer: a read never overwrites weights that are still needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.ring_plan import NO_BLOCK, RingPlan, min_capacity, plan_double_buffer, plan_ring

SIZES = st.lists(st.integers(1, 12).map(lambda n: n * PAGE), min_size=1, max_size=8)


@st.composite
def models(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Draws block sizes, and steps that use each block, some of them again later."""
    sizes = draw(SIZES)
    uses: list[int] = []
    for block in range(len(sizes)):
        uses.append(block)
        if draw(st.booleans()):
            uses.append(draw(st.sampled_from([NO_BLOCK, *range(block + 1)])))
    return sizes, uses


def run_passes(plan: RingPlan, sizes: list[int], uses: list[int], passes: int = 3) -> None:
    """Reads as early as the plan allows. Every step must find its own weights in their place."""
    memory: dict[int, tuple[int, int, int]] = {}  # page of the ring to (pass, block, offset in the block)
    chunks_per_pass, chunks_read, chunks_freed = len(plan.chunks), 0, 0
    for number in range(passes):
        for step, block in enumerate(uses):
            while chunks_read - plan.window[chunks_read % chunks_per_pass] <= chunks_freed:
                chunk = plan.chunks[chunks_read % chunks_per_pass]
                for start in range(chunk.start, chunk.start + chunk.nbytes, PAGE):
                    page = (plan.offsets[chunk.block] + start) // PAGE
                    memory[page] = chunks_read // chunks_per_pass, chunk.block, start
                chunks_read += 1
            assert chunks_read >= number * chunks_per_pass + plan.chunks_needed[step], "it would wait for ever"
            if block != NO_BLOCK:
                for start in range(0, sizes[block], PAGE):
                    assert memory[(plan.offsets[block] + start) // PAGE] == (number, block, start)
            chunks_freed = max(chunks_freed, number * chunks_per_pass + plan.chunks_freed[step])
        assert chunks_freed == (number + 1) * chunks_per_pass


@given(models(), st.integers(0, 60), st.integers(1, 5))
@settings(max_examples=150)
def test_early_reads_overwrite_nothing_that_is_needed(
    model: tuple[list[int], list[int]], more: int, chunk_pages: int
) -> None:
    sizes, uses = model
    for capacity in (min_capacity(sizes, uses), min_capacity(sizes, uses) + more * PAGE):
        plan = plan_ring(sizes, uses, capacity, chunk_bytes=chunk_pages * PAGE)
        if plan.is_feasible:
            run_passes(plan, sizes, uses)
    both = plan_double_buffer(sizes, uses)
    if both.is_feasible:
        run_passes(both, sizes, uses)


@given(SIZES)
@settings(max_examples=50)
def test_smallest_ring_is_the_largest_layer_if_none_is_shared(sizes: list[int]) -> None:
    uses = list(range(len(sizes)))
    assert min_capacity(sizes, uses) == max(sizes)
    assert plan_double_buffer(sizes, uses).capacity == 2 * max(sizes)


def test_plan_matches_a_timeline_drawn_by_hand() -> None:
    """Blocks of 2, 1, 3 and 1 pages share 4 pages. The third begins at 0 again, and the fourth follows it."""
    plan = plan_ring([2 * PAGE, PAGE, 3 * PAGE, PAGE], [0, 1, 2, 3], 4 * PAGE)
    assert plan.offsets == (0, 2 * PAGE, 0, 3 * PAGE)
    assert plan.chunks_needed == plan.chunks_freed == (1, 2, 3, 4)
    assert plan.window == (1, 2, 0, 3)  # the next pass's first block is read while the last one is used


def test_block_used_first_and_last_stays_in_the_ring() -> None:
    uses = [0, 1, 2, 0]
    plan = plan_ring([PAGE] * 3, uses, PAGE)
    assert not plan.is_feasible
    assert min_capacity([PAGE] * 3, uses) == 3 * PAGE
    assert plan_ring([PAGE] * 3, uses, 3 * PAGE).chunks_freed == (0, 0, 0, 3)


@pytest.mark.parametrize("uses", [[0, 1], [NO_BLOCK, 0, NO_BLOCK, 1, NO_BLOCK]])
def test_steps_without_weights_need_no_more_chunks(uses: list[int]) -> None:
    plan = plan_ring([PAGE, PAGE], uses, PAGE)
    assert plan.is_feasible
    assert plan.chunks_needed[-1] == 2
    run_passes(plan, [PAGE, PAGE], uses)
