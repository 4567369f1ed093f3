from __future__ import annotations

import math

import pytest
import torch

from split_infer_ros.engines.agreement import difference

NAN, INF = math.nan, math.inf


def test_differences_are_relative_to_the_largest_value() -> None:
    one, other = torch.tensor([10.0, 20.0]), torch.tensor([10.5, 20.0])
    assert difference([one], [other]) == pytest.approx(0.5 / 20)
    assert difference([one / 100], [other / 100]) < 0.0051, "small values count as they are"
    assert difference([one, other], [one, other]) == 0
    assert difference([torch.empty(0)], [torch.empty(0)]) == 0


@pytest.mark.parametrize(
    ("found", "expected", "agree"),
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
def test_nan_and_infinity_agree_only_if_both_sides_have_them(
    found: list[float], expected: list[float], agree: bool, before: int
) -> None:
    equal = [torch.ones(3)] * before
    largest = difference([*equal, torch.tensor(found), *equal], [*equal, torch.tensor(expected), *equal])
    assert largest == 0 if agree else not math.isfinite(largest)
