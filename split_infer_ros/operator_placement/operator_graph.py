"""Reads a model's network and its decode function as one graph of operators, for a placement plan."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from split_infer_ros.models.candidates import SuppressOverlaps, suppress
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import Decode as DecodeFunction
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.operator_placement.plan import INPUT, OUTPUT, Operator
from split_infer_ros.split.graph import symbolic_trace
from split_infer_ros.split.partitions import outputs_of
from split_infer_ros.torch_graphs.value_sizes import TensorSize, value_sizes

NETWORK, DECODE = "network", "decode"  # prefixes in the paths of each part's modules and constants


class Decode(nn.Module):
    """Makes one operator of a decode function that cannot be traced. The list of operators knows it as ``decode``."""

    def __init__(self, function: DecodeFunction) -> None:
        super().__init__()
        self._function = function

    def forward(self, outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        """Returns the detections of each image, as the decode function gives them."""
        return self._function(outputs, limits)


def with_decode(graph: fx.GraphModule, entry: ModelEntry) -> fx.GraphModule:
    """Joins a network and its decode function into one graph.

    The graph maps images and ``Limits`` to a list of ``Detections``. A decode function that ends with ``suppress`` is
    traced up to that call. Any other is one operator.

    Operators may change in place a value that others read. They must not change a view of such a value. A copy of the
    value on the other processor would not change with the view.

    Args:
        graph: the network. The result shares its modules; it is not changed.
        entry: the model's entry. It has the decode function.
    """
    joined = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op != "output":
            values[node] = _copy_node(joined, node, values, prefix=NETWORK)
    outputs = tuple(values[node] for node in outputs_of(list(graph.graph.nodes)))
    with joined.inserting_after(next(iter(joined.nodes))):
        limits = joined.placeholder("limits")
    decode: nn.Module
    if isinstance(entry.decode, SuppressOverlaps):
        function = entry.decode.candidates
        decode = traced = symbolic_trace(lambda outputs: function(outputs))
        candidates = _append_function(joined, traced.graph, outputs)
        detections = joined.call_function(suppress, (candidates, limits))
    else:
        decode = Decode(entry.detections_of)
        detections = joined.call_module(DECODE, (outputs, limits))
    joined.output(detections)
    roots = nn.ModuleDict({NETWORK: graph, DECODE: decode})
    module = fx.GraphModule(roots, joined, "Whole")
    _read_after_writes(module)
    return module


def _append_function(joined: fx.Graph, function: fx.Graph, inputs: tuple[fx.Node, ...]) -> fx.Node:
    """Appends a traced function, which takes a tuple of values, to a graph. Returns the node of its result."""
    (argument,) = function.find_nodes(op="placeholder")
    values: dict[fx.Node, fx.Node] = {}
    for node in function.nodes:
        if node.target is operator.getitem and node.args[0] is argument:
            values[node] = inputs[node.args[1]]
        elif node.op not in ("placeholder", "output"):
            values[node] = _copy_node(joined, node, values, prefix=DECODE)
    (result,) = function.output_node().all_input_nodes
    return values[result]


def _copy_node(joined: fx.Graph, node: fx.Node, values: Mapping[fx.Node, fx.Node], *, prefix: str) -> fx.Node:
    """Copies a node of the network or of its decode function into the joined graph.

    The prefix goes in front of the paths of modules and constants.
    """
    copied = joined.node_copy(node, values.__getitem__)
    if node.op in ("call_module", "get_attr"):
        copied.target = f"{prefix}.{node.target}"
    return copied


def _read_after_writes(graph: fx.GraphModule) -> None:
    """If an operator changes a value in place, makes later readers of the value read the operator's result instead.

    Otherwise they might read a copy on the other processor, which has not changed.
    """
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    for node in graph.graph.nodes:
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and _is_in_place(node, graph):
            for user in [user for user in source.users if order[user] > order[node]]:
                user.replace_input_with(source, node)
    graph.recompile()


def _is_in_place(node: fx.Node, owner: nn.Module) -> bool:
    if node.op == "call_module":
        return bool(getattr(owner.get_submodule(str(node.target)), "inplace", False))
    if node.kwargs.get("inplace"):
        return True
    name = _name_of(node.target)
    return (name.endswith("_") and not name.startswith("_")) or name in ("iadd", "isub", "imul", "itruediv")


def _name_of(target: Any) -> str:
    if isinstance(target, str):
        return target
    return str(getattr(getattr(target, "overloadpacket", target), "__name__", target))


def read_operators(graph: fx.GraphModule, image_shape: tuple[int, int, int]) -> tuple[Operator, ...]:
    """Returns a graph's operators in order, with the bytes of their results for one image.

    Args:
        graph: the result of ``with_decode``, or a partition.
        image_shape: the shape of an image, (C, H, W).
    """
    sizes = value_sizes(graph, (1, *image_shape), Limits())
    return tuple(
        Operator(
            name=node.name,
            kind=_kind(node, graph),
            inputs=tuple(source.name for source in node.all_input_nodes if source.op != "get_attr"),
            nbytes=nbytes_of(sizes[node]),
        )
        for node in graph.graph.nodes
        if node.op != "get_attr"
    )


def _kind(node: fx.Node, graph: fx.GraphModule) -> str:
    if node.op in ("placeholder", "output"):
        return INPUT if node.op == "placeholder" else OUTPUT
    if node.op == "call_module":
        return type(graph.get_submodule(str(node.target))).__name__
    return _name_of(node.target)


def nbytes_of(size: Any) -> int | None:
    """Returns the bytes of all tensors in a nested value; None if the value has neither tensors nor devices.

    Detections have no such bytes, because they are always on the host.

    Args:
        size: the value's size, as ``value_sizes`` gives it.
    """
    leaves = [leaf for leaf in pytree.tree_leaves(size) if isinstance(leaf, (TensorSize, torch.device))]
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, TensorSize)) if leaves else None
