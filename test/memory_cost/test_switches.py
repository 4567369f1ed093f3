from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.memory_cost.switches import MAX_STATES, Candidate, all_in_time, best_switches

numbers = st.integers(0, 20)  # of which sums are exact
candidates = st.builds(
    Candidate,
    num_kernels=numbers,
    response_ms=numbers,
    saved_bytes=numbers,
    loss_ms=st.none() | numbers,
    latest_ms=numbers,
)


def is_allowed(tasks: Sequence[Candidate], switched: Sequence[int], kernel_limit: int, start_ms: float) -> bool:
    """Returns whether enough kernels remain, and no task behind a switch ends too late."""
    end_ms, loss_ms = start_ms, 0.0
    for index, task in enumerate(tasks):
        end_ms += task.response_ms
        if index in switched:
            if task.loss_ms is None:
                return False
            loss_ms += task.loss_ms
        if min(switched) <= index and end_ms + loss_ms > task.latest_ms:
            return False
    return sum(tasks[index].num_kernels for index in switched) <= kernel_limit


@given(st.lists(candidates, max_size=6), numbers, numbers)
def test_no_other_switches_are_better(tasks: list[Candidate], kernel_limit: int, start_ms: int) -> None:
    found = best_switches(tasks, kernel_limit=kernel_limit, start_ms=start_ms)
    subsets = [
        subset for size in range(1, len(tasks) + 1) for subset in itertools.combinations(range(len(tasks)), size)
    ]
    values = [
        (sum(tasks[i].saved_bytes for i in subset), -sum(tasks[i].loss_ms or 0 for i in subset), -len(subset))
        for subset in subsets
        if is_allowed(tasks, subset, kernel_limit, start_ms)
    ]
    assert (found.saved_bytes, -found.loss_ms, -len(found.indices)) == max([(0, 0, 0), *values])
    assert found.num_kernels == sum(tasks[index].num_kernels for index in found.indices)


def test_many_tasks_are_chosen_from_quickly() -> None:
    """Powers of two have no equal sums, so that no partial choice is as good as another one."""
    tasks = [Candidate(1 << index, 1.0, saved_bytes=1 << index, loss_ms=1.0 / (index + 1)) for index in range(40)]
    assert 2 ** len(tasks) > MAX_STATES
    assert best_switches(tasks, kernel_limit=1 << 50).saved_bytes == (1 << 40) - 1
    assert 0 < best_switches(tasks, kernel_limit=1 << 20).num_kernels <= 1 << 20


def test_unknown_times_bound_nothing() -> None:
    task = Candidate(1, math.nan, saved_bytes=1, loss_ms=1.0, latest_ms=0.0)
    assert best_switches([task], kernel_limit=1).saved_bytes == 1


def test_tasks_are_in_time_until_one_is_late() -> None:
    tasks = [Candidate(1, 2.0, latest_ms=3.0), Candidate(1, 4.0, latest_ms=7.0)]
    assert all_in_time(tasks, start_ms=1.0)
    assert not all_in_time(tasks, start_ms=1.5)
    assert all_in_time([], start_ms=9.0)
