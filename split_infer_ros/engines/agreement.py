"""How far the results of two executions of one network differ."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_DIFFERENCE = 1e-4  # of the largest expected value; above it, float32 results do not agree


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Returns the largest relative difference between two sequences of tensors of the same shapes.

    Each difference is divided by the largest finite magnitude of the expected tensor, or by 1 if that is larger. The
    result is NaN or infinite if one side has a NaN or an infinity where the other side has another value.
    """
    differences = [_difference(one, other) for one, other in zip(found, expected, strict=True) if other.numel()]
    return float(torch.tensor([0.0, *differences], dtype=torch.float64).max())  # Python's max loses NaN


def _difference(found: Tensor, expected: Tensor) -> float:
    equal = (found == expected) | (found.isnan() & expected.isnan())
    largest = expected.abs().nan_to_num(nan=0.0, posinf=0.0).max().clamp(min=1)
    return float(((found - expected).abs().masked_fill(equal, 0) / largest).max())
