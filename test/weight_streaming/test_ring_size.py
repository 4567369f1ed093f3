"""Predicted delays, and the memory that is chosen by them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.weight_streaming.delay_model import StreamingProfile, fit_latency, predict_delay
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.residency import plan_resident_and_two_buffers
from split_infer_ros.weight_streaming.ring_plan import RingPlan, min_capacity, plan_double_buffer, plan_ring
from split_infer_ros.weight_streaming.ring_size import (
    SHORTLIST,
    AllowedDelay,
    RingTrial,
    choose_trial,
    explore_trade_off,
    predict_trade_off,
    shortlist,
)

PAGE_S = 1.0  # seconds of reading a page, so that times can be counted
NONE = AllowedDelay()
ONE_HUNDREDTH = AllowedDelay(share=0.01)
Workload = tuple[list[int], list[int], StreamingProfile]  # block sizes, step blocks, profile


def profile_of(*step_s: float, tail_s: float = 0.0) -> StreamingProfile:
    return StreamingProfile(step_s, tail_s, PAGE / PAGE_S)


def two_stages(ring: RingPlan) -> MemoryPlan:
    return MemoryPlan(0, ring)


def reading_s(plan: RingPlan, profile: StreamingProfile) -> float:
    """Returns the seconds of reading a pass's weights."""
    return sum(profile.read_latency_s + chunk.nbytes / profile.bandwidth for chunk in plan.chunks)


def explore(workload: Workload, *, max_bytes: int, goal_s: float) -> list[RingTrial]:
    sizes, uses, profile = workload
    return explore_trade_off(
        sizes,
        uses,
        lambda memory_plan: predict_delay(memory_plan, profile),
        max_bytes=max_bytes,
        goal_s=goal_s,
    )


def test_one_buffer_alternates_reading_and_running() -> None:
    """Each layer's page can be read only after the layer before has run."""
    plan = plan_ring([PAGE] * 3, [0, 1, 2], PAGE)
    assert predict_delay(two_stages(plan), profile_of(1.0, 1.0, 1.0)) == pytest.approx(6.0)


def test_two_buffers_hide_reading_behind_running() -> None:
    plan = plan_double_buffer([PAGE] * 4, [0, 1, 2, 3])
    assert predict_delay(two_stages(plan), profile_of(2.0, 2.0, 2.0, 2.0)) == pytest.approx(8.0)
    assert predict_delay(two_stages(plan), profile_of(0.5, 0.5, 0.5, 0.5)) == pytest.approx(4.0), (
        "reading is the longer of both"
    )


def test_ring_reads_a_long_layer_ahead() -> None:
    """Layers have 1, 1 and 4 pages. A ring of six begins the read of 4 s while the first two layers run."""
    sizes, uses, times = [PAGE, PAGE, 4 * PAGE], [0, 1, 2], profile_of(3.0, 3.0, 0.5, tail_s=0.5)
    roomy, narrow = plan_ring(sizes, uses, 6 * PAGE, chunk_bytes=PAGE), plan_ring(sizes, uses, 4 * PAGE)
    assert predict_delay(two_stages(roomy), times) == pytest.approx(7.0)
    assert predict_delay(two_stages(narrow), times) > 9.0


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    sizes = draw(st.lists(st.integers(1, 9).map(lambda n: n * PAGE), min_size=1, max_size=7))
    steps = draw(st.lists(st.floats(0.0, 10.0), min_size=len(sizes), max_size=len(sizes)))
    return sizes, list(range(len(sizes))), profile_of(*steps, tail_s=draw(st.floats(0.0, 3.0)))


@given(workloads(), st.integers(0, 40))
@settings(max_examples=100)
def test_delay_lies_between_its_bounds(workload: Workload, more: int) -> None:
    sizes, uses, profile = workload
    for plan in (
        plan_ring(sizes, uses, max(sizes) + more * PAGE, chunk_bytes=2 * PAGE),
        plan_double_buffer(sizes, uses),
    ):
        delay = predict_delay(two_stages(plan), profile)
        assert delay >= max(profile.compute_s, reading_s(plan, profile)) * (1 - 1e-9)
        assert delay <= (profile.compute_s + reading_s(plan, profile)) * (1 + 1e-9)


@given(workloads())
@settings(max_examples=60)
def test_more_memory_never_takes_longer_up_to_the_goal(
    workload: Workload,
) -> None:
    sizes, _, profile = workload
    goal = ONE_HUNDREDTH.goal_s(profile.compute_s)
    trials = explore(workload, max_bytes=sum(sizes), goal_s=goal)
    memories, delays = [trial.memory_bytes for trial in trials], [trial.delay_s for trial in trials]
    assert memories == sorted(set(memories))
    assert delays == sorted(delays, reverse=True)
    assert all(delay > goal for delay in delays[:-1]), "it grows no further than the goal"
    best = choose_trial(trials, profile.compute_s, ONE_HUNDREDTH)
    assert best.delay_s <= goal or best.delay_s <= 1.01 * min(delays)
    assert predict_delay(best.memory_plan, profile) == best.delay_s


@given(workloads(), st.floats(0.0, 2.0))
@settings(max_examples=60)
def test_fitted_latency_explains_the_measured_delay(workload: Workload, latency: float) -> None:
    sizes, uses, profile = workload
    plan = two_stages(plan_ring(sizes, uses, min_capacity(sizes, uses)))
    seen = predict_delay(plan, replace(profile, read_latency_s=latency))
    assert predict_delay(plan, fit_latency(profile, plan, seen)) == pytest.approx(seen, rel=1e-4)
    assert fit_latency(profile, plan, 0.9 * predict_delay(plan, profile)) == profile


def test_first_layers_stay_where_reading_takes_longest() -> None:
    sizes, uses = [PAGE] * 10, list(range(10))
    profile = profile_of(*[0.5] * 10)
    trials = explore((sizes, uses, profile), max_bytes=7 * PAGE, goal_s=0.0)
    best = choose_trial(trials, profile.compute_s, NONE).memory_plan
    assert best.resident_blocks >= 4
    assert predict_delay(best, profile) <= 6.5
    assert reading_s(plan_ring(sizes, uses, PAGE), profile) > 6.5


def test_slow_reads_are_hidden_as_well() -> None:
    """Layers run for 1.2 s. A ring of two blocks hides reads of 1 s, but not reads of 1.5 s."""
    sizes, uses, profile = [PAGE] * 8, list(range(8)), profile_of(*[1.2] * 8)
    goal = ONE_HUNDREDTH.goal_s(profile.compute_s)
    exact = explore((sizes, uses, profile), max_bytes=sum(sizes), goal_s=goal)
    assert choose_trial(exact, profile.compute_s, ONE_HUNDREDTH).memory_bytes == 2 * PAGE
    with_margin = predict_trade_off(sizes, uses, profile, max_bytes=sum(sizes), allowed=ONE_HUNDREDTH)
    chosen = choose_trial(with_margin, profile.compute_s, ONE_HUNDREDTH)
    assert 2 * PAGE < chosen.memory_bytes < 8 * PAGE, "some stay"
    assert chosen.delay_s <= goal


def test_shortest_delay_replaces_an_unreachable_goal() -> None:
    memory_plan = MemoryPlan(0, plan_ring([PAGE], [0], PAGE))
    trials = [RingTrial(memory, delay, memory_plan) for memory, delay in ((1, 9.0), (2, 6.4), (3, 6.0))]
    assert choose_trial(trials, 1.0, AllowedDelay(0.5)).memory_bytes == 2
    assert choose_trial(trials, 1.0, AllowedDelay(0.3)).memory_bytes == 3
    assert choose_trial(trials, 6.0, AllowedDelay(0.5)).memory_bytes == 2
    assert choose_trial(trials, 8.9, AllowedDelay(0.5)).memory_bytes == 1


@given(workloads())
@settings(max_examples=60)
def test_shortlist_begins_with_the_predicted_best_and_needs_less_and_less_memory(workload: Workload) -> None:
    sizes, _, profile = workload
    trials = explore(workload, max_bytes=sum(sizes), goal_s=ONE_HUNDREDTH.goal_s(profile.compute_s))
    found = shortlist(trials, profile.compute_s, ONE_HUNDREDTH)
    assert found[0] == choose_trial(trials, profile.compute_s, ONE_HUNDREDTH)
    assert 1 <= len(found) <= SHORTLIST
    assert all(trial.memory_bytes < found[0].memory_bytes for trial in found[1:])
    assert len({trial.memory_plan for trial in found}) == len(found)


def test_delays_within_the_noise_take_the_least_memory() -> None:
    memory_plan = MemoryPlan(0, plan_ring([PAGE], [0], PAGE))
    trials = [RingTrial(memory, delay, memory_plan) for memory, delay in ((1, 6.8), (2, 6.4), (3, 6.0))]
    assert choose_trial(trials, 1.0, NONE).memory_bytes == 3
    assert choose_trial(trials, 1.0, NONE, noise_s=0.5).memory_bytes == 2
    assert choose_trial(trials, 7.0, NONE, noise_s=0.0).memory_bytes == 1


@given(workloads(), st.integers(2, 60), st.booleans())
@settings(max_examples=60)
def test_two_buffers_fit_beside_the_blocks_that_stay(workload: Workload, pages: int, is_copied: bool) -> None:
    sizes, uses, profile = workload
    profile = replace(profile, copy_bandwidth=PAGE / PAGE_S)
    plan = plan_resident_and_two_buffers(sizes, uses, memory_bytes=pages * PAGE, is_copied=is_copied)
    smallest = (4 if is_copied else 2) * max(sizes)
    assert (plan is None) == (smallest > pages * PAGE or sum(sizes) <= pages * PAGE - smallest)
    if plan is not None:
        assert plan.ring_bytes + sum(sizes[: plan.resident_blocks]) <= pages * PAGE
        assert plan.is_lockstep == is_copied
        assert predict_delay(plan, profile) >= profile.compute_s * (1 - 1e-9)


def test_ring_takes_all_weights_if_all_are_needed_at_once() -> None:
    """The first block is used again after the second one. A ring a fiftieth larger than it exceeds both."""
    sizes, uses, profile = [100 * PAGE, PAGE], [0, 1, 0], profile_of(1.0, 1.0, 1.0)
    assert min_capacity(sizes, uses) == sum(sizes)
    trials = explore((sizes, uses, profile), max_bytes=sum(sizes), goal_s=0.0)
    assert choose_trial(trials, profile.compute_s, NONE).memory_bytes == sum(sizes)


def test_allowed_delay_is_the_longer_of_seconds_and_share() -> None:
    """A pass of 160 ms may take 1 ms or 0.1 ms longer. One hundredth of it is 1.6 ms, and counts only if asked for."""
    assert AllowedDelay(1e-3).goal_s(0.16) == pytest.approx(0.161)
    assert AllowedDelay(1e-4).goal_s(0.16) == pytest.approx(0.1601)
    assert AllowedDelay(1e-3, share=0.01).goal_s(0.16) == pytest.approx(0.1616)
    assert AllowedDelay(5e-3, share=0.01).goal_s(0.16) == pytest.approx(0.165)


def test_shorter_allowed_delay_takes_more_memory() -> None:
    """Each block that is not resident costs 1 s of reading, which runs beside 9 s of other layers in part only."""
    sizes, uses = [PAGE] * 20, list(range(20))
    profile = profile_of(*[0.9] * 20)
    chosen = []
    for allowed in (AllowedDelay(10.0), AllowedDelay(1.0), AllowedDelay(0.1)):
        goal_s = allowed.goal_s(profile.compute_s)
        trials = explore((sizes, uses, profile), max_bytes=sum(sizes), goal_s=goal_s)
        chosen.append(choose_trial(trials, profile.compute_s, allowed))
        assert chosen[-1].delay_s <= goal_s
    assert chosen[0].memory_bytes < chosen[1].memory_bytes < chosen[2].memory_bytes


@pytest.mark.parametrize("is_copied", [False, True])
def test_memory_of_both_sides_counts(is_copied: bool) -> None:
    sizes, uses, profile = [PAGE] * 10, list(range(10)), replace(profile_of(*[0.5] * 10), copy_bandwidth=10 * PAGE)
    trials = explore_trade_off(
        sizes,
        uses,
        lambda memory_plan: predict_delay(memory_plan, profile),
        max_bytes=14 * PAGE,
        goal_s=0.0,
        is_copied=is_copied,
    )
    assert trials[0].memory_bytes == (2 if is_copied else 1) * PAGE
    for trial in trials:
        plan = trial.memory_plan
        assert (plan.staging is not None) == is_copied
        assert plan.ring_bytes + sum(sizes[: plan.resident_blocks]) <= trial.memory_bytes
