"""Steps hold their resources, wait for those that others hold, and are never interrupted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.co_optimisation.board.events import Resource, Step, Trace, simulate

GPU, DRIVER = (frozenset({each}) for each in (Resource.GPU, Resource.DRIVER))
steps = st.builds(
    lambda idle, load, rest, held, repeats: Step(idle + load + rest, held, idle, load, repeats),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([frozenset(), GPU, DRIVER, GPU | DRIVER]),
    st.integers(1, 4),
)
processes = st.lists(st.lists(steps, max_size=4), min_size=1, max_size=3)


def test_processes_without_common_resources_overlap() -> None:
    assert simulate([[Step(3, GPU)], [Step(5, DRIVER)], [Step(1)], []]) == Trace((3, 5, 1, 0), 0)


def test_one_step_at_a_time_holds_a_resource() -> None:
    trace = simulate([[Step(3, GPU, 1, 2)], [Step(5, GPU, 1, 4)]])
    assert trace == Trace((3, 8), 6)


def test_repeated_steps_of_two_processes_alternate() -> None:
    """The first one holds the GPU in 0 to 1, 2 to 3 and 4 to 5, and the second one between these and once more."""
    assert simulate([[Step(1, GPU, repeats=3)], [Step(1, GPU, repeats=4)]]).ends_ms == (5, 7)


def test_a_step_waits_for_all_its_resources() -> None:
    assert simulate([[Step(2, GPU)], [Step(7, DRIVER)], [Step(1, GPU | DRIVER)]]).ends_ms == (2, 7, 8)


def test_a_waiting_step_is_not_overtaken() -> None:
    """The third process wants the GPU later than the second one, which still waits for the driver."""
    trace = simulate([[Step(9, DRIVER)], [Step(1, GPU | DRIVER)], [Step(2), Step(1, GPU)]])
    assert trace.ends_ms == (9, 10, 11)


def test_load_of_overlapping_steps_counts_once() -> None:
    assert simulate([[Step(4, GPU, 0, 4)], [Step(6, DRIVER, 2, 3)]]).load_ms == 5


@given(processes)
def test_no_process_ends_before_its_own_steps(drawn: list[list[Step]]) -> None:
    """Exact: whole milliseconds. All processes end by the time that they would take one after the other."""
    trace = simulate(drawn)
    alone_ms = [sum(step.ms * step.repeats for step in process) for process in drawn]
    assert all(end >= alone for end, alone in zip(trace.ends_ms, alone_ms, strict=True))
    assert max(trace.ends_ms) <= sum(alone_ms)
    assert trace.load_ms <= sum(step.load_ms * step.repeats for process in drawn for step in process)


@given(st.lists(steps, max_size=4))
def test_repeats_are_as_long_as_so_many_steps(drawn: list[Step]) -> None:
    """Exact: whole milliseconds."""
    single = [Step(each.ms, each.resources, each.idle_ms, each.load_ms) for each in drawn for _ in range(each.repeats)]
    found, expected = simulate([drawn]), simulate([single])
    assert found.ends_ms == expected.ends_ms
    assert found.load_ms == pytest.approx(expected.load_ms)
