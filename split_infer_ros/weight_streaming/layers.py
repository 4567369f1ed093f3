"""Finds the layers of a traced model, and prepares its graph to run without resident weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import Tensor, fx, nn

from split_infer_ros.engines.fusion import FusedConv2d, fuse_convolutions
from split_infer_ros.split.graph import stand_in
from split_infer_ros.torch_graphs.value_sizes import TensorSize, value_sizes

_IN_PLACE_OPERATORS = {"setitem", "__setitem__", "iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow"}


@dataclass(frozen=True, slots=True)
class Layer:
    """A module that has weights, or a tensor that the graph reads directly.

    Attributes:
        name: path of the module, or name of the tensor.
        tensors: names of the layer's parameters and buffers in the model's state.
        module: the module; None for a tensor that the graph reads directly.
    """

    name: str
    tensors: tuple[str, ...]
    module: nn.Module | None


def layers_of(graph: fx.GraphModule) -> list[Layer]:
    """Lists each layer once, in the order of first use."""
    found: dict[str, Layer] = {}
    for node in graph.graph.nodes:
        layer = layer_of(graph, node)
        if layer is not None:
            found.setdefault(layer.name, layer)
    return list(found.values())


def layer_of(graph: fx.GraphModule, node: fx.Node) -> Layer | None:
    """Returns the layer that a node uses, or None if the node needs no weights."""
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
        own = ["weight"] if module.bias is None else ["weight", "bias"]
        return Layer(module.source, tuple(f"{module.source}.{tensor}" for tensor in own), module)
    own = [*dict(module.named_parameters()), *dict(module.named_buffers())]
    return Layer(name, tuple(f"{name}.{tensor}" for tensor in own), module) if own else None


def skeleton(graph: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy of the graph. Stand-ins without memory replace its weights."""
    return copy.deepcopy(graph, {id(tensor): stand_in(tensor) for tensor in (*graph.parameters(), *graph.buffers())})


def streamable_graph(graph: fx.GraphModule, fuse: bool) -> fx.GraphModule:
    """Returns a copy of a graph that is ready for streamed weights. The copy has no weights yet.

    Args:
        graph: the graph of a model or partition. It is not changed.
        fuse: whether to fuse convolutions, as on a CPU.
    """
    streamable = skeleton(graph)
    if fuse:
        fuse_convolutions(streamable)
    group_shared_calls(streamable)
    return streamable


def group_shared_calls(graph: fx.GraphModule) -> None:
    """Reorders nodes in place so that all calls of a shared layer follow each other. Results keep the same bits.

    A detector's head runs the same layers on each feature map. If it runs map by map, it needs all its weights until
    the last map. If it runs layer by layer, it needs each weight once. No node moves past an operation that may work in
    place.
    """
    nodes = list(graph.graph.nodes)
    calls: dict[str, list[fx.Node]] = {}
    for node in nodes:
        if node.op == "call_module" and layer_of(graph, node) is not None:
            calls.setdefault(str(node.target), []).append(node)
    sections = _sections(graph, nodes)
    order: dict[fx.Node, None] = {}
    for node in nodes:
        if node in order:
            continue
        _append_with_sources(order, node)
        for other in calls.get(str(node.target), ()) if node.op == "call_module" else ():
            if sections[other] == sections[node]:
                _append_with_sources(order, other)
    if list(order) == nodes:
        return
    for node in list(order):
        if node.op != "output":
            graph.graph.output_node().prepend(node)
    graph.recompile()


def _sections(graph: fx.GraphModule, nodes: list[fx.Node]) -> dict[fx.Node, int]:
    """Numbers the sections between operations that may work in place. A node may move only within its section."""
    sections: dict[fx.Node, int] = {}
    section = 0
    for node in nodes:
        if _may_change_its_input(graph, node):
            sections[node] = section + 1  # a section of its own
            section += 2
        else:
            sections[node] = section
    return sections


def _append_with_sources(order: dict[fx.Node, None], node: fx.Node) -> None:
    """Appends a node to the order, after all nodes that it depends on."""
    stack = [node]
    while stack:
        top = stack[-1]
        missing = [source for source in top.all_input_nodes if source not in order]
        if top in order:
            stack.pop()
        elif missing:
            stack.extend(missing)
        else:
            order[stack.pop()] = None


def _may_change_its_input(graph: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(graph.get_submodule(str(node.target)), "inplace", False))
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    by_name = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE_OPERATORS
    by_option = node.kwargs.get("inplace") or "out" in node.kwargs
    return node.op in ("call_method", "call_function") and bool(by_name or by_option)


def input_shapes(graph: fx.GraphModule, image_shape: tuple[int, ...]) -> dict[str, set[tuple[int, ...]]]:
    """Returns module paths and the shapes of each module's first input, for images of shape (N, C, H, W)."""
    sizes = value_sizes(graph, image_shape)
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for node in graph.graph.find_nodes(op="call_module"):
        size = sizes[node.args[0]] if node.args and isinstance(node.args[0], fx.Node) else None
        if isinstance(size, TensorSize):
            shapes.setdefault(str(node.target), set()).add(size.shape)
    return shapes
