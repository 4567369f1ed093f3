"""Turns a model into the graph of operators that the planner sees, and applies the plan to that graph."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from split_infer_ros.engines.fusion import fuse_convolutions
from split_infer_ros.models.detections import Detections, Limits, SuppressOverlaps, suppress
from split_infer_ros.models.entry import Decode, ModelEntry
from split_infer_ros.operator_placement.plan import INPUT, OUTPUT, Copy, Operator, PlacementPlan, Tag
from split_infer_ros.split.graph import symbolic_trace
from split_infer_ros.split.partitions import outputs_of
from split_infer_ros.split.split_points import propagate

NETWORK, DECODE = "network", "decode"  # prefixes of the paths of the modules and constants of both parts
NBYTES = "nbytes"  # key in a node's meta: bytes of the tensors in its value; None if there are none


class OpaqueDecode(nn.Module):
    """A decode function that cannot be traced, as one operator."""

    def __init__(self, function: Decode) -> None:
        super().__init__()
        self._function = function

    def forward(self, outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        """Calls the function."""
        return self._function(outputs, limits)


def with_decode(graph: fx.GraphModule, entry: ModelEntry) -> fx.GraphModule:
    """Joins a network and its decode into one graph, which maps images and ``Limits`` to a list of ``Detections``.

    A detector's decode is traced up to suppression. Any other decode is one operator. Operators may work in place on
    values that others read, but not on views of them: a copy on the other processor would not change.

    Args:
        graph: the network. It is shared, but not changed.
        entry: the model's entry, which has its decode.
    """
    joined = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op != "output":
            values[node] = _copy_node(joined, node, values, NETWORK)
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
        decode = OpaqueDecode(entry.decode)
        detections = joined.call_module(DECODE, (outputs, limits))
    joined.output(detections)
    roots = nn.ModuleDict({NETWORK: graph, DECODE: decode})
    module = fx.GraphModule(roots, joined, "Whole")
    _read_after_writes(module)
    return module


def _append_function(joined: fx.Graph, function: fx.Graph, inputs: tuple[fx.Node, ...]) -> fx.Node:
    """Appends a traced function of a tuple of values. Returns the node of its result."""
    (argument,) = function.find_nodes(op="placeholder")
    values: dict[fx.Node, fx.Node] = {}
    for node in function.nodes:
        if node.target is operator.getitem and node.args[0] is argument:
            values[node] = inputs[node.args[1]]
        elif node.op not in ("placeholder", "output"):
            values[node] = _copy_node(joined, node, values, DECODE)
    (result,) = function.output_node().all_input_nodes
    return values[result]


def _copy_node(joined: fx.Graph, node: fx.Node, values: Mapping[fx.Node, fx.Node], prefix: str) -> fx.Node:
    """Copies a node of one part, whose modules and constants are under a prefix, into the joined graph."""
    copied = joined.node_copy(node, values.__getitem__)
    if node.op in ("call_module", "get_attr"):
        copied.target = f"{prefix}.{node.target}"
    return copied


def _read_after_writes(graph: fx.GraphModule) -> None:
    """Makes later readers of a value that an operator changes in place read that operator's result instead.

    A copy of the value on the other processor would not change with it.
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
    """Returns the operators in order, with the bytes of their results for one image.

    Args:
        graph: the result of ``with_decode``.
        image_shape: (C, H, W).
    """
    propagate(_SizeRecorder(graph), (1, *image_shape), Limits())
    return tuple(
        Operator(
            name=node.name,
            kind=_kind(node, graph),
            inputs=tuple(source.name for source in node.all_input_nodes if source.op != "get_attr"),
            nbytes=node.meta[NBYTES],
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


class _SizeRecorder(fx.Interpreter):
    """Runs a graph and records the size of each value in its node."""

    def run_node(self, node: fx.Node) -> Any:
        result = super().run_node(node)
        node.meta[NBYTES] = nbytes_of(result)
        return result


def nbytes_of(value: Any) -> int | None:
    """Returns the bytes of all tensors in a nested value; None if nothing in it depends on a device."""
    sizes = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Detections):
            sizes += [part.nbytes for part in (leaf.boxes, leaf.scores, leaf.labels)]
        elif isinstance(leaf, (Tensor, torch.device)):
            sizes.append(leaf.nbytes if isinstance(leaf, Tensor) else 0)
    return sum(sizes) if sizes else None


def copy_to(value: Any, device: torch.device) -> Any:
    """Returns a nested value with its tensors on ``device``. Tensors that are there already are not copied."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Detections):
            return Detections(leaf.boxes.to(device), leaf.scores.to(device), leaf.labels.to(device))
        if isinstance(leaf, torch.device):
            return device
        return leaf.to(device) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(move, value)


def apply_plan(graph: fx.GraphModule, plan: PlacementPlan, devices: Mapping[Tag, torch.device]) -> fx.GraphModule:
    """Returns a graph with each operator on its processor and with the plan's copies.

    Args:
        graph: the one from which ``read_operators`` read the operators. It is not changed. Weights that stay on their
            device are shared.
        plan: of these operators.
        devices: the devices that ``GPU`` and ``CPU`` stand for. Both may be the CPU.
    """
    return _PlacedGraphBuilder(graph, plan, devices).build()


class _PlacedGraphBuilder:
    """Builds the placed graph node by node."""

    def __init__(self, graph: fx.GraphModule, plan: PlacementPlan, devices: Mapping[Tag, torch.device]) -> None:
        self._graph, self._plan, self._devices = graph, plan, devices
        self._placed = fx.Graph()
        self._values: dict[tuple[fx.Node, Tag], fx.Node] = {}  # the placed node of each value on each processor
        self._parts: dict[str, Any] = {}  # modules and constants by path

    def build(self) -> fx.GraphModule:
        """Returns the placed graph."""
        copies: dict[str, list[Copy]] = {}
        for each in self._plan.copies:
            copies.setdefault(each.before, []).append(each)
        nodes_by_name = {node.name: node for node in self._graph.graph.nodes}
        for node in self._graph.graph.nodes:
            if node.op == "get_attr":
                continue
            tag = self._plan.devices[node.name]
            for each in copies.get(node.name, ()):
                self._add_copy(nodes_by_name[each.producer], each.target)
            self._values[node, tag] = self._add_operator(node, tag)
        placed = fx.GraphModule(self._parts, self._placed, "Placed")
        fuse_convolutions(placed)  # those on the CPU
        return placed

    def _add_copy(self, producer: fx.Node, target: Tag) -> None:
        value = self._values[producer, self._plan.devices[producer.name]]
        self._values[producer, target] = self._placed.call_function(copy_to, (value, self._devices[target]))

    def _add_operator(self, node: fx.Node, tag: Tag) -> fx.Node:
        placed = self._placed.node_copy(node, lambda source: self._value_on(source, tag))
        if node.op == "call_module":
            placed.target = self._part(str(node.target), tag, self._graph.get_submodule(str(node.target)))
        if isinstance(
            node.kwargs.get("device"), torch.device
        ):  # an exported graph names the device of tensors that it makes
            placed.update_kwarg("device", self._devices[tag])
        return placed

    def _value_on(self, source: fx.Node, tag: Tag) -> fx.Node:
        """Returns the placed node of a value on a processor.

        Constants are put on every processor that needs them. Numbers have one node, which serves both processors.
        """
        if source.op != "get_attr":
            producer_tag = self._plan.devices[source.name]
            return self._values.get((source, tag)) or self._values[source, producer_tag]
        if (source, tag) not in self._values:
            constant = operator.attrgetter(str(source.target))(self._graph)
            self._values[source, tag] = self._placed.get_attr(self._part(str(source.target), tag, constant))
        return self._values[source, tag]

    def _part(self, path: str, tag: Tag, part: nn.Module | Tensor) -> str:
        """Returns the path of a module or constant on a processor. If both are the CPU, they share it."""
        device = self._devices[tag]
        name = f"on_{device.type}.{path}"
        if name not in self._parts:
            if isinstance(part, Tensor):
                self._parts[name] = part.to(device)
            else:
                tensors = (*part.parameters(), *part.buffers())
                moves = any(tensor.device.type != device.type for tensor in tensors)
                self._parts[name] = copy.deepcopy(part).to(device) if moves else part
        return name
