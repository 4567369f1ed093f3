from __future__ import annotations

import torch
from torch import Tensor, nn

from split_infer_ros.engines.allowed_difference import allowed_difference
from split_infer_ros.engines.result_difference import MAX_DIFFERENCE, MAX_ROUNDING, MAX_ROUNDING_RATIO


class Cancelling(nn.Module):
    """Adds and takes away a large number, which leaves few right digits in float32."""

    def __init__(self, large: float) -> None:
        super().__init__()
        self.large = large

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return ((x + self.large) - self.large,)


def test_what_rounds_more_may_differ_more() -> None:
    """float32 has 24 bits: behind 2^14 and 2^17, steps of 2^-9 and 2^-6 are left, so half of one at most is lost."""
    x = torch.linspace(-1, 1, 1000)
    (plain,), (coarse,), (lost,) = (Cancelling(large)(x) for large in (1.0, 2.0**14, 2.0**17))
    assert allowed_difference(Cancelling(1.0), (x,), (plain,)) == MAX_DIFFERENCE
    allowed = allowed_difference(Cancelling(2.0**14), (x,), (coarse,))
    assert MAX_DIFFERENCE < allowed <= MAX_ROUNDING_RATIO * 2.0**-10
    assert allowed_difference(Cancelling(2.0**17), (x,), (lost,)) == MAX_ROUNDING


class OnlyFloat32(nn.Module):
    """Multiplies by a matrix of float32, whatever it is given."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x @ torch.eye(len(x), dtype=torch.float32),)


def test_what_has_no_float64_may_not_differ_more() -> None:
    x = torch.ones(3)
    assert allowed_difference(OnlyFloat32(), (x,), (x + 1,)) == MAX_DIFFERENCE
