"""Convolutions on a CPU with weights that are packed once. Each applies its activation while the cache has the result.

The operations are oneDNN's, which torch.compile also uses. Here they run without that compiler and its minute of
start-up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

CallSignature = tuple[torch.Size, int]  # the input's shape and the number of threads
MAX_SIGNATURES = 256  # whose weights are chosen at a time
MAX_LAYOUTS = 3  # packed copies of one convolution's weights
_PACKING = threading.Lock()  # a convolution has none of its own, because networks are copied


class FusedConv2d(nn.Module):
    """A convolution and the activation that follows it, in float32 on a CPU.

    Both modules are read once; later changes to them have no effect. A call signature is the input's shape and the
    number of threads. The best layout of the weights depends on it. Weights in the layout of another signature are
    converted at every call, which makes a network three to ten times slower. Plain weights cost about a tenth more time
    than packed ones. Therefore weights are packed for each signature that comes twice, in the first few layouts that
    are needed. Other calls take the plain weights.

    Signatures alternate in four cases. Requests are merged into batches of many sizes. A detector runs one convolution
    on maps of several sizes. The last batch of a burst is smaller. When the split point moves, another thread runs the
    convolution.

    Args:
        convolution: a convolution with zero padding.
        activation: an activation that oneDNN has, or None.
        source: the convolution's path in its network.

    Attributes:
        source: the convolution's path in its network.
        geometry: padding, stride, dilation, groups.
        activation: the activation's name, numbers and algorithm in oneDNN's terms.
        weight, bias: the plain weights and bias; bias is None if there is none.
    """

    def __init__(self, convolution: nn.Conv2d, activation: nn.Module | None, source: str = "") -> None:
        super().__init__()
        self.source = source
        self.geometry = geometry(convolution)
        self.activation: Any = ("none", [], None) if activation is None else _attributes(activation)
        self.bias = None if convolution.bias is None else convolution.bias.detach()
        self.weight = convolution.weight.detach()
        # Dictionaries are replaced, not changed: two threads run here while a split point moves.
        self._seen: dict[CallSignature, None] = {}  # signatures that came once, the latest last
        self._chosen: dict[CallSignature, Tensor] = {}  # the plain weights, or packed ones
        self._layouts: dict[bytes, Tensor] = {}  # packed weights; they are opaque: they cannot be saved or moved

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, C, H, W) to (N, C', H', W').

        The input is first made channels last, so that plain and packed weights give the same bits.
        """
        x = x.contiguous(memory_format=torch.channels_last)
        result: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self._weights(x.shape), self.bias, *self.geometry, *self.activation
        )
        return result

    def is_packed_for(self, shape: Sequence[int]) -> bool:
        """Returns whether the weights are packed for an input of this shape, with the calling thread's threads."""
        chosen = self._chosen.get((torch.Size(shape), torch.get_num_threads()), self.weight)
        return chosen is not self.weight

    @property
    def num_layouts(self) -> int:
        """How many packed copies of the weights are kept."""
        return len(self._layouts)

    def _weights(self, shape: torch.Size) -> Tensor:
        call = shape, torch.get_num_threads()
        found = self._chosen.get(call)
        if found is not None:
            return found
        if call in self._seen:
            with _PACKING:
                return self._choose(call)
        self._seen = dict.fromkeys([*self._seen, call][-MAX_SIGNATURES:])
        return self.weight

    def _choose(self, call: CallSignature) -> Tensor:
        """Chooses the weights for all further calls of a signature (``_PACKING`` held).

        They are packed if the best layout is one of those that are kept, or if another one may be kept.
        """
        packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(self.weight, *self.geometry, list(call[0]))
        layout = torch.ops.mkldnn._get_mkldnn_serialized_md(packed).numpy().tobytes()
        if len(self._chosen) >= MAX_SIGNATURES:
            self._chosen, self._layouts = {}, {}
        if layout not in self._layouts and len(self._layouts) < MAX_LAYOUTS:
            self._layouts = {**self._layouts, layout: packed}
        chosen = self._layouts.get(layout, self.weight)
        self._chosen = {**self._chosen, call: chosen}
        return chosen


def fuse_convolutions(graph: fx.GraphModule) -> None:
    """Replaces each convolution and the activation directly behind it by one ``FusedConv2d``.

    The graph is changed in place; modules are not changed. Results differ only by rounding. Nothing happens if this
    build of torch has no oneDNN.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    replace_convolutions(graph, "fused", _can_be_packed, _attributes, FusedConv2d)


def replace_convolutions(
    graph: fx.GraphModule,
    prefix: str,
    fits: Callable[[nn.Module], bool],
    read: Callable[[nn.Module], object],
    make: Callable[[Any, nn.Module | None, str], nn.Module],
) -> None:
    """Replaces convolutions or other layers of a graph, and the activations directly behind them, in place.

    Args:
        graph: the graph. Its modules are not changed.
        prefix: begins the names of the new modules.
        fits: says whether a module is a layer to be replaced.
        read: returns what a new module has to know of an activation; None if it cannot apply that activation.
        make: makes the new module of a layer, the activation that is its only user, if any, and its path.
    """
    modules = dict(graph.named_modules())
    made: dict[tuple[str, str], str] = {}
    for node in list(graph.graph.nodes):
        if node.op != "call_module" or not fits(modules[str(node.target)]):
            continue
        users = [user for user in node.users if user.op == "call_module" and len(node.users) == 1]
        joined = [user for user in users if read(modules[str(user.target)]) is not None]
        key = str(node.target), str(joined[0].target) if joined else ""
        if key not in made:
            made[key] = f"{prefix}_{len(made)}"
            graph.add_module(made[key], make(modules[key[0]], modules[key[1]] if joined else None, key[0]))
        node.target = made[key]
        for activation in joined:
            activation.replace_all_uses_with(node)
            graph.graph.erase_node(activation)
    graph.delete_all_unused_submodules()
    graph.recompile()


def geometry(convolution: nn.Conv2d) -> tuple[list[int], list[int], list[int], int]:
    """Returns a convolution's padding, stride, dilation and groups, in the types that oneDNN's operations take."""
    padding = [int(each) for each in convolution.padding]
    return padding, list(convolution.stride), list(convolution.dilation), convolution.groups


def _can_be_packed(module: nn.Module) -> bool:
    return (
        type(module) is nn.Conv2d
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.weight.dtype == torch.float32
        and module.weight.device.type == "cpu"
    )


def _attributes(activation: nn.Module) -> tuple[str, list[float], str | None] | None:
    """Returns an activation's name, numbers and algorithm in oneDNN's terms; None if oneDNN does not have it."""
    if isinstance(activation, nn.Hardtanh):  # ReLU6 is one
        return "hardtanh", [activation.min_val, activation.max_val], ""
    if isinstance(activation, nn.LeakyReLU):
        return "leaky_relu", [activation.negative_slope], ""
    names: dict[Any, str] = {nn.ReLU: "relu", nn.Hardswish: "hardswish", nn.SiLU: "swish"}
    name = names.get(type(activation))
    return None if name is None else (name, [], "")
