"""Sums of all values up to each (§3.1.1, Fig. 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from split_infer_ros.vision_ops.fastest import PLAIN, TRITON, fastest

SUMMED = (torch.float32, torch.int64)  # by the kernel


def prefix_sum(values: Tensor) -> Tensor:
    """Of each row the sum of the values up to and with each.

    On the host torch's ``cumsum`` is as fast as can be and is used as it is. On a GPU the three stages of the paper
    take its place where they are faster. Sums of integers are exact; of floating numbers they are added in another
    order, so the last bits can differ between devices.

    Args:
        values: floating, integer or bool (..., n); a single number is its own sum.

    Returns:
        (..., n), of the same type; int64 for integers and bool, which wrap around.
    """
    return _on_gpu(values) if values.is_cuda else values.cumsum(-1)


def _on_gpu(values: Tensor) -> Tensor:
    summed = values if values.is_floating_point() else values.to(torch.int64)
    if summed.dtype not in SUMMED or not summed.ndim or not summed.numel():
        return summed.cumsum(-1)
    forms = {PLAIN: lambda: summed.cumsum(-1), TRITON: lambda: _in_stages(summed)}
    return fastest("prefix_sum", summed, summed.shape, forms)


def _in_stages(values: Tensor) -> Tensor:
    from split_infer_ros.vision_ops.kernels.prefix_sum import sum_in_stages  # Triton is optional

    return sum_in_stages(values)
