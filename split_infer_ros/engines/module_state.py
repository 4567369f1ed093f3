"""The tensors that a module holds."""

from __future__ import annotations

from torch import Tensor, nn


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns all parameters and buffers by name, with the buffers that a state dict leaves out."""
    state: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    return state | dict(module.named_buffers(remove_duplicate=False))
