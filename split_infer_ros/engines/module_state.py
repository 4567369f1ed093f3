"""The tensors that a module holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def state_of(module: Any) -> dict[str, Tensor]:
    """Returns all parameters and buffers by name, with the buffers that a state dict leaves out.

    What is no module of torch, such as a part that another engine executes, has none.
    """
    if not hasattr(module, "named_parameters"):
        return {}
    state: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    return state | dict(module.named_buffers(remove_duplicate=False))
