"""A part of a network that computes in 16 bits, for callers that have float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from split_infer_ros.split.partition_cache import Partition


class ConvertedPart(nn.Module):
    """Converts inputs from float32, runs a part, and converts its results back.

    Args:
        part: maps tensors to a tuple of tensors.
        dtypes: the dtypes of the part's inputs, in order.
    """

    def __init__(self, part: Partition, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        self._part, self._dtypes = part, tuple(dtypes)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Takes and returns tensors whose floating-point values are float32."""
        inputs = (tensor.to(dtype) for tensor, dtype in zip(tensors, self._dtypes, strict=True))
        return tuple(each.float() if each.is_floating_point() else each for each in self._part(*inputs))
