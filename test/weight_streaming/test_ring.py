"""Plans of the ring: what is read never lies where something is still needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.weight_streaming.packed_file import PAGE
from split_infer_ros.weight_streaming.ring import NONE, RingPlan, circular, double_buffered, least_capacity

SIZES = st.lists(st.integers(1, 12).map(lambda n: n * PAGE), min_size=1, max_size=8)


@st.composite
def models(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Sizes of blocks, and steps that use each, some again later."""
    sizes = draw(SIZES)
    uses: list[int] = []
    for block in range(len(sizes)):
        uses.append(block)
        if draw(st.booleans()):
            uses.append(draw(st.sampled_from([NONE, *range(block + 1)])))
    return sizes, uses


def play(plan: RingPlan, sizes: list[int], uses: list[int], passes: int = 3) -> None:
    """Read as early as the plan allows; every step must find its own weights where they belong."""
    memory: dict[int, tuple[int, int, int]] = {}  # page to (pass, block, page of the block)
    count, read, released = len(plan.portions), 0, 0
    for turn in range(passes):
        for step, block in enumerate(uses):
            while read - plan.window[read % count] <= released:
                portion = plan.portions[read % count]
                for start in range(portion.start, portion.start + portion.nbytes, PAGE):
                    page = (plan.offsets[portion.block] + start) // PAGE
                    memory[page] = read // count, portion.block, start
                read += 1
            assert read >= turn * count + plan.needs[step], "it would wait for ever"
            if block != NONE:
                for start in range(0, sizes[block], PAGE):
                    assert memory[(plan.offsets[block] + start) // PAGE] == (turn, block, start)
            released = max(released, turn * count + plan.frees[step])
        assert released == (turn + 1) * count


@given(models(), st.integers(0, 60), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_whatever_is_read_early_overwrites_nothing_that_is_needed(
    model: tuple[list[int], list[int]], more: int, chunk: int
) -> None:
    sizes, uses = model
    for capacity in (least_capacity(sizes, uses), least_capacity(sizes, uses) + more * PAGE):
        plan = circular(sizes, uses, capacity, chunk * PAGE)
        if plan.feasible:
            play(plan, sizes, uses)
    both = double_buffered(sizes, uses)
    if both.feasible:
        play(both, sizes, uses)


@given(SIZES)
@settings(max_examples=50, deadline=None)
def test_layers_that_are_used_once_need_no_more_than_the_largest(sizes: list[int]) -> None:
    uses = list(range(len(sizes)))
    assert least_capacity(sizes, uses) == max(sizes)
    assert double_buffered(sizes, uses).capacity == 2 * max(sizes)


def test_a_timeline_drawn_by_hand() -> None:
    """Blocks of 2, 1, 3 and 1 pages in 4 pages: 0 at 0, 1 at 2, 2 from the front again, 3 behind it."""
    plan = circular([2 * PAGE, PAGE, 3 * PAGE, PAGE], [0, 1, 2, 3], 4 * PAGE)
    assert plan.offsets == (0, 2 * PAGE, 0, 3 * PAGE)
    assert plan.needs == plan.frees == (1, 2, 3, 4)
    assert plan.window == (1, 2, 0, 3)  # the next pass's first block is read while the last one is used


def test_a_block_that_is_used_at_both_ends_stays() -> None:
    uses = [0, 1, 2, 0]
    plan = circular([PAGE] * 3, uses, PAGE)
    assert not plan.feasible
    assert least_capacity([PAGE] * 3, uses) == 3 * PAGE
    assert circular([PAGE] * 3, uses, 3 * PAGE).frees == (0, 0, 0, 3)


@pytest.mark.parametrize("uses", [[0, 1], [NONE, 0, NONE, 1, NONE]])
def test_steps_without_weights_wait_for_nothing_new(uses: list[int]) -> None:
    plan = circular([PAGE, PAGE], uses, PAGE)
    assert plan.feasible
    assert plan.needs[-1] == 2
    play(plan, [PAGE, PAGE], uses)
