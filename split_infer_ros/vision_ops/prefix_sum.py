"""Running sums of rows of values (§3.1.1, Fig. 3).

No frame passes through this function. On a GPU, ``box_nms`` adds by the same kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from split_infer_ros.vision_ops.implementations import ImplementationChoice, run_fastest

PREFIX_SUM_DTYPES = (torch.float32, torch.int64)  # that the kernel sums


def prefix_sum(values: Tensor) -> Tensor:
    """Returns, for each value of a row, the sum of the row up to and including that value.

    On the host this is torch's ``cumsum``, which nothing beats. On a GPU the paper's three stages replace it where they
    are faster. Sums of integers are exact. Floating sums add in another order, so their last bits can differ between
    devices.

    Args:
        values: floating, integer or bool (..., n). A single number is its own sum.

    Returns:
        (..., n), of the same type; int64 for integers and bool, which wrap around.
    """
    return _on_gpu(values) if values.is_cuda else values.cumsum(-1)


def _on_gpu(values: Tensor) -> Tensor:
    summable = values if values.is_floating_point() else values.to(torch.int64)
    if summable.dtype not in PREFIX_SUM_DTYPES or not summable.ndim or not summable.numel():
        return summable.cumsum(-1)
    implementations = {
        ImplementationChoice.PLAIN: lambda: summable.cumsum(-1),
        ImplementationChoice.TRITON: lambda: _in_stages(summable),
    }
    return run_fastest("prefix_sum", summable, summable.shape, implementations)


def _in_stages(values: Tensor) -> Tensor:
    from split_infer_ros.vision_ops.kernels.prefix_sum import sum_in_stages  # Triton is optional

    return sum_in_stages(values)
