from __future__ import annotations

from collections.abc import Sequence

import pytest

from split_infer_ros.measurements.steady import MAX_RESULTS, Measured, measure_steadily, repeat_until_steady


def groups(*medians: float) -> Measured:
    series = iter(medians)
    measured = measure_steadily(lambda: [next(series)] * 2)
    assert next(series, None) is None, "a group too few was taken"
    return measured


def test_groups_that_agree_are_enough() -> None:
    assert groups(1.0, 1.05, 1.02) == Measured((1.0, 1.0, 1.02, 1.02, 1.05, 1.05), uncertain=False)


def test_a_disturbed_group_is_measured_again_and_left_out() -> None:
    found = groups(1.0, 3.0, 1.01, 1.02)
    assert not found.uncertain
    assert sorted(set(found.costs)) == [1.0, 1.01, 1.02]


def test_what_never_agrees_is_uncertain() -> None:
    found = groups(*(1.0 + 0.2 * turn for turn in range(MAX_RESULTS)))
    assert found.uncertain
    assert len(found.costs) == 2 * MAX_RESULTS


@pytest.mark.parametrize("medians", [(1.0, 2.0, 3.0)])
def test_no_time_left_is_uncertain_too(medians: Sequence[float]) -> None:
    series = iter(medians)
    found = measure_steadily(lambda: [next(series)], may_go_on=lambda: False)
    assert found == Measured(tuple(medians), uncertain=True)


def test_first_slow_passes_do_not_count() -> None:
    passes = iter([[5.0, 40.0], [5.0, 30.0], [5.0, 4.0], [5.1, 4.0]])
    assert repeat_until_steady(lambda: next(passes), sum, num_agreeing=2) == ([[5.0, 4.0], [5.1, 4.0]], True)
