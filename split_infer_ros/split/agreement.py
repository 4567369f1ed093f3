"""Whether two ways to run a network give the same."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

WITHIN = 1e-4  # of the largest value, in float32


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest between tensors of the same shapes, each as a part of what is expected of it at most, or of 1."""
    differences = [
        float((one - other).abs().max() / other.abs().max().clamp(min=1)) if other.numel() else 0.0
        for one, other in zip(found, expected, strict=True)
    ]
    return max(differences, default=0.0)
