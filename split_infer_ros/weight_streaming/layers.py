"""Which layers a traced model has, in which order they run, and what they are before their weights are there."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import Tensor, fx, nn

from split_infer_ros.engines.fusion import FusedConv2d, fuse_convolutions
from split_infer_ros.split.graph import stand_in
from split_infer_ros.split.split_points import propagate

_IN_PLACE = ("setitem", "__setitem__", *(f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "pow")))


@dataclass(frozen=True, slots=True)
class Layer:
    """What holds weights.

    Attributes:
        name: path of the module; of a tensor that the graph reads by itself, its own.
        tensors: names of its parameters and buffers in the model's state.
        module: None for such a tensor.
    """

    name: str
    tensors: tuple[str, ...]
    module: nn.Module | None


def layers_of(graph: fx.GraphModule) -> list[Layer]:
    """Each layer once, in the order of first use."""
    found: dict[str, Layer] = {}
    for node in graph.graph.nodes:
        layer = layer_of(graph, node)
        if layer is not None:
            found.setdefault(layer.name, layer)
    return list(found.values())


def layer_of(graph: fx.GraphModule, node: fx.Node) -> Layer | None:
    """The layer that a node uses; None if it needs no weights."""
    name = str(node.target)
    if node.op == "get_attr":
        value = graph
        for part in name.split("."):
            value = getattr(value, part)
        return Layer(name, (name,), None) if isinstance(value, Tensor) else None
    if node.op != "call_module":
        return None
    module = graph.get_submodule(name)
    if isinstance(module, FusedConv2d):
        own = ["weight", *(["bias"] if module.bias is not None else [])]
        return Layer(module.source, tuple(f"{module.source}.{tensor}" for tensor in own), module)
    own = [*dict(module.named_parameters()), *dict(module.named_buffers())]
    return Layer(name, tuple(f"{name}.{tensor}" for tensor in own), module) if own else None


def skeleton(part: fx.GraphModule) -> fx.GraphModule:
    """A copy without weights, in whose place are stand-ins."""
    return copy.deepcopy(part, {id(tensor): stand_in(tensor) for tensor in (*part.parameters(), *part.buffers())})


def to_be_streamed(part: fx.GraphModule, fuse: bool) -> fx.GraphModule:
    """A model's part as it runs with streamed weights, still without them; on a CPU its convolutions are fused."""
    graph = skeleton(part)
    if fuse:
        fuse_convolutions(graph)
    gather_uses(graph)
    return graph


def gather_uses(graph: fx.GraphModule) -> None:
    """Reorder, in place, so that all calls of a shared layer follow each other; results stay the same bits.

    A detector's head runs the same layers on each of its maps. Map by map, all of its weights are needed until the
    last one; layer by layer, each is needed once. Nothing passes an operation that may work in place.
    """
    nodes = list(graph.graph.nodes)
    calls: dict[str, list[fx.Node]] = {}
    for node in nodes:
        if node.op == "call_module" and layer_of(graph, node) is not None:
            calls.setdefault(str(node.target), []).append(node)
    section: dict[fx.Node, int] = {}  # nodes move within theirs only
    number = 0
    for node in nodes:
        number += (barrier := _may_change_its_input(graph, node))
        section[node] = number
        number += barrier
    order: dict[fx.Node, None] = {}

    def place(node: fx.Node) -> None:
        stack = [node]
        while stack:
            top = stack[-1]
            ahead = [source for source in top.all_input_nodes if source not in order]
            if top in order:
                stack.pop()
            elif ahead:
                stack.extend(ahead)
            else:
                order[stack.pop()] = None

    for node in nodes:
        if node in order:
            continue
        place(node)
        for other in calls.get(str(node.target), ()) if node.op == "call_module" else ():
            if section[other] == section[node]:
                place(other)
    if list(order) == nodes:
        return
    for node in list(order):
        if node.op != "output":
            graph.graph.output_node().prepend(node)
    graph.recompile()


def _may_change_its_input(graph: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(graph.get_submodule(str(node.target)), "inplace", False))
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    by_name = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE
    by_option = node.kwargs.get("inplace") or "out" in node.kwargs
    return node.op in ("call_method", "call_function") and bool(by_name or by_option)


def input_shapes(graph: fx.GraphModule, image_shape: tuple[int, ...]) -> dict[str, set[tuple[int, ...]]]:
    """The shapes of what each module is called with, for images of that shape, (N, C, H, W)."""
    seen: dict[str, set[tuple[int, ...]]] = {}

    class Recorder(fx.Interpreter):
        def call_module(self, target: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            if args and isinstance(args[0], Tensor):
                seen.setdefault(str(target), set()).add(tuple(args[0].shape))
            return super().call_module(target, args, kwargs)  # type: ignore[arg-type]

    propagate(Recorder(graph), image_shape)
    return seen
