"""Convolutions on a CPU: weights packed once, the activation done while the result is in the cache.

These are oneDNN's operations as torch.compile uses them, without its compiler and its minute of start-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

Kind = tuple[torch.Size, int]  # of call: the input's shape and the number of threads


class FusedConv2d(nn.Module):
    """A convolution and the activation that follows it, for float32 on a CPU; both are taken as they are now.

    How weights are best laid out depends on the input's shape and on the number of threads. Laid out for another
    kind of call, they are converted anew at each, and so slowly that a network takes three to ten times as long;
    plain ones cost some tenth more. So they are packed for a kind of call that comes twice running, and whatever
    else comes takes the plain ones. (Detectors run one convolution on maps of several sizes; the last batch of a
    burst is smaller; a moved cut gives a convolution to another thread.)

    Attributes:
        source: path of the convolution.
        geometry: padding, stride, dilation, groups.
        activation: in oneDNN's words: name, numbers, algorithm.
        weight, bias: plain.
    """

    def __init__(self, convolution: nn.Conv2d, activation: nn.Module | None, source: str = "") -> None:
        super().__init__()
        c = convolution
        self.source = source
        self.geometry = geometry(c)
        self.activation: Any = ("none", [], None) if activation is None else _attributes(activation)
        self.bias = None if c.bias is None else c.bias.detach()
        self.weight = c.weight.detach()
        self._last: Kind | None = None
        self._packed: tuple[Kind, Tensor] | None = None  # the tensor is opaque: it cannot be saved or moved

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C', H', W'), channels last however ``x`` lies: so both weights give the same bits."""
        x = x.contiguous(memory_format=torch.channels_last)
        result: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self._weights(x.shape), self.bias, *self.geometry, *self.activation
        )
        return result

    def _weights(self, shape: torch.Size) -> Tensor:
        kind = shape, torch.get_num_threads()
        packed = self._packed  # read once: while a split point moves, two threads are here
        if packed is not None and packed[0] == kind:
            return packed[1]
        again, self._last = kind == self._last, kind
        if not again:
            return self.weight
        weights: Tensor = torch.ops.mkldnn._reorder_convolution_weight(self.weight, *self.geometry, list(shape))
        self._packed = kind, weights
        return weights


def fuse_convolutions(graph: fx.GraphModule) -> None:
    """Replace convolutions, and the activations that follow them directly, in place; modules are not changed.

    Results differ by rounding alone. Where this build of torch has no oneDNN, nothing is done.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    modules = dict(graph.named_modules())
    fused: dict[tuple[str, str], str] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_module" or not _can_be_packed(modules[str(node.target)]):
            continue
        follower = follower_of(node, modules, lambda module: _attributes(module) is not None)
        key = str(node.target), str(follower.target) if follower else ""
        if key not in fused:
            fused[key] = f"fused_{len(fused)}"
            convolution, activation = modules[key[0]], modules[key[1]] if follower else None
            graph.add_module(fused[key], FusedConv2d(convolution, activation, key[0]))
        node.target = fused[key]
        if follower:
            follower.replace_all_uses_with(node)
            graph.graph.erase_node(follower)
    graph.delete_all_unused_submodules()
    graph.recompile()


def geometry(convolution: nn.Conv2d) -> tuple[list[int], list[int], list[int], int]:
    """Padding, stride, dilation and groups, as oneDNN's operations take them."""
    c = convolution
    return [int(n) for n in c.padding], list(c.stride), list(c.dilation), c.groups


def _can_be_packed(module: nn.Module) -> bool:
    return (
        type(module) is nn.Conv2d
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.weight.dtype == torch.float32
        and module.weight.device.type == "cpu"
    )


def follower_of(node: fx.Node, modules: Mapping[str, nn.Module], fits: Callable[[nn.Module], bool]) -> fx.Node | None:
    """The call of a fitting module that alone uses what a node gives."""
    if len(node.users) != 1:
        return None
    (follower,) = node.users
    return follower if follower.op == "call_module" and fits(modules[str(follower.target)]) else None


def _attributes(activation: nn.Module) -> tuple[str, list[float], str | None] | None:
    """An activation in oneDNN's words; None if it has none."""
    if isinstance(activation, nn.Hardtanh):  # ReLU6 is one
        return "hardtanh", [activation.min_val, activation.max_val], ""
    if isinstance(activation, nn.LeakyReLU):
        return "leaky_relu", [activation.negative_slope], ""
    names: dict[Any, str] = {nn.ReLU: "relu", nn.Hardswish: "hardswish", nn.SiLU: "swish"}
    name = names.get(type(activation))
    return None if name is None else (name, [], "")
