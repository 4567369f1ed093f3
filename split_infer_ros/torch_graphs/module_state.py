"""Says whether something is a torch module, and which tensors a module holds. This file does not import torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def is_module(value: object) -> bool:
    """Returns whether a value, such as a partition, is a torch module. If torch was not imported, nothing is one."""
    nn = getattr(sys.modules.get("torch"), "nn", None)
    return nn is not None and isinstance(value, nn.Module)


def state_of(module: Any) -> dict[str, Tensor]:
    """Returns all parameters and buffers by name, including buffers that a state dict leaves out.

    The result is empty for anything but a torch module, such as a part that another engine executes.
    """
    if not is_module(module):
        return {}
    state: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    return state | dict(module.named_buffers(remove_duplicate=False))
