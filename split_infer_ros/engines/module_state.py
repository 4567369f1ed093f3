"""What is a module of torch, and the tensors that it holds. This imports no torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def is_module(value: object) -> bool:
    """Returns whether a partition is a module of torch. A process that has not imported torch has none."""
    nn = getattr(sys.modules.get("torch"), "nn", None)
    return nn is not None and isinstance(value, nn.Module)


def state_of(module: Any) -> dict[str, Tensor]:
    """Returns all parameters and buffers by name, with the buffers that a state dict leaves out.

    What is no module of torch, such as a part that another engine executes, has none.
    """
    if not is_module(module):
        return {}
    state: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    return state | dict(module.named_buffers(remove_duplicate=False))
