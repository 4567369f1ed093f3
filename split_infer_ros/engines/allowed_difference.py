"""Says how large a difference between two executions of one network may be, if rounding causes it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from split_infer_ros.engines.result_difference import (
    MAX_DIFFERENCE,
    MAX_LOW_PRECISION_DIFFERENCE,
    MAX_LOW_PRECISION_RATIO,
    MAX_ROUNDING,
    MAX_ROUNDING_RATIO,
    difference,
)
from split_infer_ros.models.entry import outputs_of
from split_infer_ros.torch_graphs.module_state import state_of


def allowed_difference(part: nn.Module, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> float:
    """Returns how far another engine's results of a part may be from torch's, as a share of the largest value.

    This is ``MAX_DIFFERENCE``, or ``MAX_ROUNDING_RATIO`` times torch's own rounding if that is more. It is at most
    ``MAX_ROUNDING``. Torch's rounding is the difference between its results in float32 and in float64. It grows from
    layer to layer: in an untrained EfficientNet-B2, it is 1.6e-4. For a part with weights of 16 bits, the function
    returns ``MAX_LOW_PRECISION_DIFFERENCE``.

    Args:
        part: maps tensors to a tensor, or to a tuple or list of them. A copy of the part runs in float64.
        inputs: the inputs of a run in float32.
        results: torch's results for these inputs.
    """
    if any(each.dtype in (torch.float16, torch.bfloat16) for each in state_of(part).values()):
        return MAX_LOW_PRECISION_DIFFERENCE
    return max(MAX_DIFFERENCE, min(MAX_ROUNDING_RATIO * _rounding(part, inputs, results, torch.float64), MAX_ROUNDING))


def allowed_in_precision(
    part: nn.Module, inputs: Sequence[Tensor], results: Sequence[Tensor], dtype: torch.dtype
) -> float:
    """Returns how far a part's results in 16 bits may be from torch's in float32, as a share of the largest value.

    This is ``MAX_LOW_PRECISION_DIFFERENCE``, or ``MAX_LOW_PRECISION_RATIO`` times torch's own rounding if that is more.
    Torch's rounding is the difference between its results in float32 and in ``dtype``. In an untrained ResNet-50, both
    torch in bfloat16 and OpenVINO are 0.025 from float32.

    Args:
        part: maps tensors to a tuple of tensors. A copy of the part runs in ``dtype``.
        inputs: the inputs of a run in float32.
        results: torch's results for these inputs.
        dtype: a dtype of 16 bits.
    """
    return max(MAX_LOW_PRECISION_DIFFERENCE, MAX_LOW_PRECISION_RATIO * _rounding(part, inputs, results, dtype))


def _rounding(part: nn.Module, inputs: Sequence[Tensor], results: Sequence[Tensor], dtype: torch.dtype) -> float:
    """Returns how far torch's results in another dtype are from those in float32; 0 if that cannot be found out."""
    converted = [each.to(dtype) if each.dtype == torch.float32 else each for each in inputs]
    try:
        rounded = difference(outputs_of(copy.deepcopy(part).to(dtype)(*converted)), results)
    except RuntimeError:  # the graph names float32 somewhere, or an operation does not take the dtype
        return 0.0
    return rounded if math.isfinite(rounded) else 0.0
