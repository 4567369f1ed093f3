"""Modules that apply the weights of several models of one architecture, each to its own part of a tensor.

A tensor of one model has the shape (n, c, ...): n images, c channels. The tensors of m models lie in one tensor, in one
of two ways. Either they lie beside each other in the channels, (n, m * c, ...). Or the models have their own dimension,
(n, m, c, ...).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from split_infer_ros.torch_graphs.module_state import state_of

_CHANNEL_COUNTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Conv2d: ("in_channels", "out_channels", "groups"),
    nn.ConvTranspose2d: ("in_channels", "out_channels", "groups"),
    nn.BatchNorm2d: ("num_features",),
    nn.GroupNorm: ("num_groups", "num_channels"),
}
"""Modules that compute groups of channels apart, and the names of their numbers of channels and groups."""


def has_groups_of_channels(module: nn.Module) -> bool:
    """Returns whether ``stack_channels`` takes modules of this kind."""
    return type(module) in _CHANNEL_COUNTS


def stack_channels(modules: Sequence[nn.Module]) -> nn.Module:
    """Returns a module that does for (n, m * c, h, w) what each of m modules does for its own channels.

    A convolution becomes one with m times as many groups.

    Args:
        modules: one module of each model. All are of one kind, for which ``has_groups_of_channels`` is True, and have
            weights of the same shapes.
    """
    stacked = copy.deepcopy(modules[0])
    for name in _CHANNEL_COUNTS[type(stacked)]:
        setattr(stacked, name, len(modules) * getattr(stacked, name))
    for name, tensor in state_of(stacked).items():
        if tensor.dim() == 0:  # a counter of batches
            continue
        joined = torch.cat([state_of(module)[name].detach() for module in modules])
        if joined.dim() == 4:
            joined = joined.contiguous(memory_format=torch.channels_last)
        is_parameter = isinstance(tensor, nn.Parameter)
        setattr(stacked, name, nn.Parameter(joined, requires_grad=False) if is_parameter else joined)
    return stacked


class StackedLinear(nn.Module):
    """The linear layers of several models as one product of batches of matrices.

    Args:
        layers: one layer of each model. All have weights of the same shapes.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        weights = torch.stack([layer.weight.detach() for layer in layers])  # (m, out, in)
        self.weight = nn.Parameter(weights, requires_grad=False)
        self.bias: nn.Parameter | None = None
        if layers[0].bias is not None:
            biases = torch.stack([layer.bias.detach() for layer in layers])  # (m, out)
            self.bias = nn.Parameter(biases, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (n, m, ..., in) to (n, m, ..., out). The last dimension holds the layers' inputs, then their outputs."""
        rows = x.movedim(1, 0)
        shape = rows.shape[1:-1]
        rows = rows.flatten(1, -2)  # (m, rows, in)
        matrices = self.weight.transpose(1, 2)
        bias = self.bias
        results = torch.bmm(rows, matrices) if bias is None else torch.baddbmm(bias[:, None], rows, matrices)
        return results.view(len(results), *shape, -1).movedim(0, 1)


class PerModel(nn.Module):
    """An operation that no other module here can run for all models at once. ``torch.vmap`` runs it.

    Args:
        parts: the operation as a graph, one for each model. The graphs differ in their weights only.
        is_stacked: for each input of the graphs, whether each model has its own value. Otherwise all share one value.
    """

    def __init__(self, parts: Sequence[fx.GraphModule], is_stacked: Sequence[bool]) -> None:
        super().__init__()
        states = [state_of(part) for part in parts]
        self._names = tuple(states[0])
        self.weights = nn.ParameterList(
            nn.Parameter(torch.stack([state[name].detach() for state in states]), requires_grad=False)
            for name in self._names
        )
        self._in_dims = (*(1 if stacked else None for stacked in is_stacked), *(0 for _ in self._names))
        self._pattern = (copy.deepcopy(parts[0]).to("meta"),)  # in a tuple, so that torch neither moves nor lists it
        self._shells: list[fx.GraphModule] = []  # each call changes its own shell, because several threads may call

    def forward(self, *values: Any) -> Any:
        """Maps the operation's inputs to its results. Where each model has its own value, dimension 1 is m."""
        shell = self._shells.pop() if self._shells else copy.deepcopy(self._pattern[0])
        num_inputs = len(values)
        nothing: list[int] = []  # places of results that are None, which vmap does not take

        def call_one(*values: Any) -> Any:
            weights = dict(zip(self._names, values[num_inputs:], strict=True))
            (result,) = torch.func.functional_call(shell, weights, values[:num_inputs])
            if isinstance(result, Tensor):
                return result
            nothing[:] = [place for place, each in enumerate(result) if each is None]
            return tuple(each for each in result if each is not None)

        results = torch.vmap(call_one, in_dims=self._in_dims, out_dims=1)(*values, *self.weights)
        self._shells.append(shell)
        if not nothing:
            return results
        results = list(results)
        for place in nothing:
            results.insert(place, None)
        return tuple(results)
