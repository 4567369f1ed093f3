"""Predicted delays, and how much memory they are worth."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.weight_streaming.delay_model import Machine, predict, with_latency
from split_infer_ros.weight_streaming.packed_file import PAGE
from split_infer_ros.weight_streaming.residency import Placement
from split_infer_ros.weight_streaming.ring import circular, double_buffered, least_capacity
from split_infer_ros.weight_streaming.ring_size import RingTrial, choose, explore, goal_of, trade_off

PAGE_S = 1.0  # seconds of reading a page, so that times can be counted


def machine(*steps: float, rest: float = 0.0) -> Machine:
    return Machine(steps, rest, PAGE / PAGE_S)


def test_one_buffer_reads_and_runs_in_turns() -> None:
    """Each layer's page can be read only when the layer before has run."""
    plan = circular([PAGE] * 3, [0, 1, 2], PAGE)
    assert predict(plan, machine(1.0, 1.0, 1.0)) == pytest.approx(6.0)


def test_two_buffers_hide_reading_behind_running() -> None:
    plan = double_buffered([PAGE] * 4, [0, 1, 2, 3])
    assert predict(plan, machine(2.0, 2.0, 2.0, 2.0)) == pytest.approx(8.0)
    assert predict(plan, machine(0.5, 0.5, 0.5, 0.5)) == pytest.approx(4.0), "reading is the longer of both"


def test_in_step_a_long_read_waits_and_at_their_own_pace_it_does_not() -> None:
    """Pages 1, 1, 4 (read in 4 s): a ring of six lets it begin while the first two layers run."""
    sizes, uses, times = [PAGE, PAGE, 4 * PAGE], [0, 1, 2], machine(3.0, 3.0, 0.5, rest=0.5)
    assert predict(circular(sizes, uses, 6 * PAGE, PAGE), times) == pytest.approx(7.0)
    assert predict(circular(sizes, uses, 4 * PAGE), times) > 9.0


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[int], list[int], Machine]:
    sizes = draw(st.lists(st.integers(1, 9).map(lambda n: n * PAGE), min_size=1, max_size=7))
    steps = draw(st.lists(st.floats(0.0, 10.0), min_size=len(sizes), max_size=len(sizes)))
    return sizes, list(range(len(sizes))), machine(*steps, rest=draw(st.floats(0.0, 3.0)))


@given(workloads(), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_no_pass_is_shorter_than_its_bound_or_longer_than_both_in_turns(
    load: tuple[list[int], list[int], Machine], more: int
) -> None:
    sizes, uses, found = load
    for plan in (circular(sizes, uses, max(sizes) + more * PAGE, 2 * PAGE), double_buffered(sizes, uses)):
        delay = predict(plan, found)
        assert delay >= found.bound(plan) * (1 - 1e-9)
        assert delay <= (found.compute + found.reading(plan)) * (1 + 1e-9)


@given(workloads())
@settings(max_examples=60, deadline=None)
def test_more_memory_never_costs_time_and_no_more_than_needed_is_taken(
    load: tuple[list[int], list[int], Machine],
) -> None:
    sizes, uses, found = load
    goal = goal_of(found.compute, 0.0)
    points = explore(sizes, uses, lambda placement: predict(placement.plan, found), sum(sizes), goal)
    memories, delays = [p.memory for p in points], [p.delay for p in points]
    assert memories == sorted(set(memories))
    assert delays == sorted(delays, reverse=True)
    assert all(delay > goal for delay in delays[:-1]), "it grows no further than the goal"
    best = choose(points, found.compute, 0.0)
    assert best.delay <= goal or best.delay <= 1.01 * min(delays)
    assert predict(best.placement.plan, found) == best.delay


@given(workloads(), st.floats(0.0, 2.0))
@settings(max_examples=60, deadline=None)
def test_latency_is_what_explains_a_pass(load: tuple[list[int], list[int], Machine], latency: float) -> None:
    sizes, uses, found = load
    plan = circular(sizes, uses, least_capacity(sizes, uses))
    seen = predict(plan, replace(found, latency=latency))
    assert predict(plan, with_latency(found, plan, seen)) == pytest.approx(seen, rel=1e-4)
    assert with_latency(found, plan, 0.9 * predict(plan, found)) == found


def test_where_reading_takes_longest_first_layers_stay() -> None:
    sizes, uses = [PAGE] * 10, list(range(10))
    found = machine(*[0.5] * 10)
    points = explore(sizes, uses, lambda placement: predict(placement.plan, found), 7 * PAGE, 0.0)
    best: Placement = choose(points, found.compute, 0.0).placement
    assert best.resident >= 4
    assert predict(best.plan, found) <= 6.5 < found.reading(circular(sizes, uses, PAGE))


def test_reads_that_now_and_then_take_longer_are_hidden_too() -> None:
    """Of layers that run for 1.2 s, reads of 1 s are hidden by a ring of two, but not if they took 1.5 s."""
    sizes, uses, found = [PAGE] * 8, list(range(8)), machine(*[1.2] * 8)
    goal = goal_of(found.compute, 0.0)
    seen = explore(sizes, uses, lambda placement: predict(placement.plan, found), sum(sizes), goal)
    assert choose(seen, found.compute, 0.0).memory == 2 * PAGE
    prudent = choose(trade_off(sizes, uses, found, sum(sizes), 0.0), found.compute, 0.0)
    assert 2 * PAGE < prudent.memory < 8 * PAGE, "some stay"
    assert prudent.delay <= goal


def test_what_is_allowed_counts_from_the_best_to_be_had_where_resident_s_delay_is_not() -> None:
    placement = Placement(0, circular([PAGE], [0], PAGE))
    points = [RingTrial(memory, delay, placement) for memory, delay in ((1, 9.0), (2, 6.4), (3, 6.0))]
    assert choose(points, 1.0, 0.5).memory == 2
    assert choose(points, 1.0, 0.3).memory == 3
    assert choose(points, 6.0, 0.5).memory == 2
    assert choose(points, 8.9, 0.5).memory == 1


def test_where_all_weights_are_needed_at_once_there_is_one_choice() -> None:
    """The first block is used again behind the second one; a fiftieth more than it is more than both."""
    sizes, uses, found = [100 * PAGE, PAGE], [0, 1, 0], machine(1.0, 1.0, 1.0)
    assert least_capacity(sizes, uses) == sum(sizes)
    points = explore(sizes, uses, lambda placement: predict(placement.plan, found), sum(sizes), 0.0)
    assert choose(points, found.compute, 0.0).memory == sum(sizes)
