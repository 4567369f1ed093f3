from __future__ import annotations

import math

import pytest
import torch

from split_infer_ros.split.agreement import difference


def test_differences_count_as_parts_of_the_largest_value() -> None:
    one, other = torch.tensor([10.0, 20.0]), torch.tensor([10.5, 20.0])
    assert difference([one], [other]) == pytest.approx(0.5 / 20)
    assert difference([one / 100], [other / 100]) < 0.0051, "small ones as they are"
    assert difference([one, other], [one, other]) == 0
    assert difference([torch.empty(0)], [torch.empty(0)]) == 0
    assert math.isnan(difference([torch.tensor([math.nan])], [torch.tensor([1.0])])), "which is not within anything"
