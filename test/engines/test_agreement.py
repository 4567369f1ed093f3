from __future__ import annotations

import math

import pytest
import torch

from split_infer_ros.engines.agreement import difference

NAN, INF = math.nan, math.inf


def test_differences_count_as_parts_of_the_largest_value() -> None:
    one, other = torch.tensor([10.0, 20.0]), torch.tensor([10.5, 20.0])
    assert difference([one], [other]) == pytest.approx(0.5 / 20)
    assert difference([one / 100], [other / 100]) < 0.0051, "small ones as they are"
    assert difference([one, other], [one, other]) == 0
    assert difference([torch.empty(0)], [torch.empty(0)]) == 0


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ([NAN], [1.0], False),
        ([1.0, 2.0], [1.0, NAN], False),
        ([INF], [1.0], False),
        ([1.0, 2.0], [1.0, INF], False),
        ([INF], [-INF], False),
        ([1.0, 9.0], [INF, 1.0], False),
        ([1.0, NAN, INF], [1.0, NAN, INF], True),
    ],
)
@pytest.mark.parametrize("before", [0, 2])
def test_what_is_not_finite_differs_wherever_it_stands_unless_both_have_it(
    one: list[float], other: list[float], alike: bool, before: int
) -> None:
    fine = [torch.ones(3)] * before
    found = difference([*fine, torch.tensor(one), *fine], [*fine, torch.tensor(other), *fine])
    assert found == 0 if alike else not math.isfinite(found)
