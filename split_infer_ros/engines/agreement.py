"""Whether two ways to run a network give the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WITHIN = 1e-4  # of the largest value, in float32


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest between tensors of the same shapes, each as a part of what is expected of it at most, or of 1.

    NaN or infinite where one has what is not finite and the other has not the same.
    """
    differences = [_difference(one, other) for one, other in zip(found, expected, strict=True) if other.numel()]
    return float(torch.tensor([0.0, *differences], dtype=torch.float64).max())  # Python's loses NaN


def _difference(one: Tensor, other: Tensor) -> float:
    alike = (one == other) | (one.isnan() & other.isnan())
    largest = other.abs().nan_to_num(nan=0.0, posinf=0.0).max().clamp(min=1)
    return float(((one - other).abs().masked_fill(alike, 0) / largest).max())
