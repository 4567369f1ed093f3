"""A model's graph as the planner sees it, and as it runs once it is placed."""

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
from split_infer_ros.models.entry import Decode as DecodeFunction
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.operator_placement.plan import INPUT, OUTPUT, Copy, Operator, PlacementPlan, Tag
from split_infer_ros.split.graph import symbolic_trace
from split_infer_ros.split.split_points import propagate

NETWORK, DECODE = "network", "decode"  # the two parts of the whole, under which its modules and constants are found
NBYTES = "nbytes"  # key in a node's meta: of the tensors in its value; None if there are none


class Decode(nn.Module):
    """A decode that cannot be looked into, as one operator."""

    def __init__(self, function: DecodeFunction) -> None:
        super().__init__()
        self._function = function

    def forward(self, outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        """What the function gives."""
        return self._function(outputs, limits)


def with_decode(graph: fx.GraphModule, entry: ModelEntry) -> fx.GraphModule:
    """The network and its decode as one graph: images and ``Limits`` to a list of ``Detections``.

    Operators may work in place on what others read, but not on a view of it: a copy would not see that.

    Args:
        graph: the network; shared, not changed.
        entry: whose decode follows. Of a detector its operators follow up to suppression, else it is one operator.
    """
    whole = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op != "output":
            values[node] = _copied(whole, node, values, NETWORK)
    results = graph.graph.output_node().args[0]
    named = results if isinstance(results, (tuple, list)) else (results,)
    outputs = tuple(values[node] for node in named if isinstance(node, fx.Node))
    with whole.inserting_after(next(iter(whole.nodes))):
        limits = whole.placeholder("limits")
    decode: nn.Module
    if isinstance(entry.decode, SuppressOverlaps):
        function = entry.decode.candidates
        decode = traced = symbolic_trace(lambda outputs: function(outputs))
        found = whole.call_function(suppress, (_append(whole, traced.graph, outputs), limits))
    else:
        decode = Decode(entry.decode)
        found = whole.call_module(DECODE, (outputs, limits))
    whole.output(found)
    roots = nn.ModuleDict({NETWORK: graph, DECODE: decode})
    joined = fx.GraphModule(roots, whole, "Whole")
    _read_after_writes(joined)
    return joined


def _append(whole: fx.Graph, part: fx.Graph, outputs: tuple[fx.Node, ...]) -> fx.Node:
    """A traced function of a tuple, behind the tuple's values."""
    (given,) = part.find_nodes(op="placeholder")
    values: dict[fx.Node, fx.Node] = {}
    for node in part.nodes:
        if node.target is operator.getitem and node.args[0] is given:
            values[node] = outputs[node.args[1]]
        elif node.op not in ("placeholder", "output"):
            values[node] = _copied(whole, node, values, DECODE)
    (candidates,) = part.output_node().all_input_nodes
    return values[candidates]


def _copied(whole: fx.Graph, node: fx.Node, values: Mapping[fx.Node, fx.Node], part: str) -> fx.Node:
    """A node of a part of the whole."""
    mine = whole.node_copy(node, values.__getitem__)
    if node.op in ("call_module", "get_attr"):
        mine.target = f"{part}.{node.target}"
    return mine


def _read_after_writes(graph: fx.GraphModule) -> None:
    """Who reads a value after an operator has changed it in place takes that operator's result: a copy is no alias."""
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
    """The operators in order, with the bytes they give for one image.

    Args:
        graph: as ``with_decode`` gives it.
        image_shape: (C, H, W).
    """
    propagate(_Recorder(graph), (1, *image_shape), Limits())
    return tuple(
        Operator(
            node.name,
            _kind(node, graph),
            tuple(source.name for source in node.all_input_nodes if source.op != "get_attr"),
            node.meta[NBYTES],
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


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps in each node how large its value is."""

    def run_node(self, node: fx.Node) -> Any:
        result = super().run_node(node)
        node.meta[NBYTES] = nbytes_of(result)
        return result


def nbytes_of(value: Any) -> int | None:
    """Of the tensors in a value, or in what it is made of; None if it has nothing to do with a device."""
    sizes = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, Detections):
            sizes += [part.nbytes for part in (leaf.boxes, leaf.scores, leaf.labels)]
        elif isinstance(leaf, (Tensor, torch.device)):
            sizes.append(leaf.nbytes if isinstance(leaf, Tensor) else 0)
    return sum(sizes) if sizes else None


def copy_to(value: Any, device: torch.device) -> Any:
    """The same value with its tensors on ``device``; those that are there already are not copied."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Detections):
            return Detections(leaf.boxes.to(device), leaf.scores.to(device), leaf.labels.to(device))
        if isinstance(leaf, torch.device):
            return device
        return leaf.to(device) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(move, value)


def place(graph: fx.GraphModule, plan: PlacementPlan, devices: Mapping[Tag, torch.device]) -> fx.GraphModule:
    """The graph with each operator on its processor, and with the plan's copies.

    Args:
        graph: as ``read_operators`` read it; not changed. Weights are shared where they need not move.
        plan: of its operators.
        devices: what ``GPU`` and ``CPU`` are here; both may be the CPU.
    """
    return _Builder(graph, plan, devices).build()


class _Builder:
    def __init__(self, graph: fx.GraphModule, plan: PlacementPlan, devices: Mapping[Tag, torch.device]) -> None:
        self._graph, self._plan, self._devices = graph, plan, devices
        self._placed = fx.Graph()
        self._values: dict[tuple[fx.Node, Tag], fx.Node] = {}
        self._parts: dict[str, Any] = {}

    def build(self) -> fx.GraphModule:
        copies: dict[str, list[Copy]] = {}
        for found in self._plan.copies:
            copies.setdefault(found.before, []).append(found)
        named = {node.name: node for node in self._graph.graph.nodes}
        for node in self._graph.graph.nodes:
            if node.op == "get_attr":
                continue
            tag = self._plan.devices[node.name]
            for found in copies.get(node.name, ()):
                self._copy(named[found.producer], found.target)
            self._values[node, tag] = self._operator(node, tag)
        placed = fx.GraphModule(self._parts, self._placed, "Placed")
        fuse_convolutions(placed)  # of those on the CPU
        return placed

    def _copy(self, producer: fx.Node, target: Tag) -> None:
        value = self._values[producer, self._plan.devices[producer.name]]
        self._values[producer, target] = self._placed.call_function(copy_to, (value, self._devices[target]))

    def _operator(self, node: fx.Node, tag: Tag) -> fx.Node:
        placed = self._placed.node_copy(node, lambda source: self._at(source, tag))
        if node.op == "call_module":
            placed.target = self._part(str(node.target), tag, self._graph.get_submodule(str(node.target)))
        if isinstance(node.kwargs.get("device"), torch.device):  # an exported graph names it where it makes tensors
            placed.update_kwarg("device", self._devices[tag])
        return placed

    def _at(self, source: fx.Node, tag: Tag) -> fx.Node:
        """A value where it is needed; constants are wherever they are needed, numbers everywhere."""
        if source.op != "get_attr":
            own = self._plan.devices[source.name]
            return self._values.get((source, tag)) or self._values[source, own]
        if (source, tag) not in self._values:
            constant = operator.attrgetter(str(source.target))(self._graph)
            self._values[source, tag] = self._placed.get_attr(self._part(str(source.target), tag, constant))
        return self._values[source, tag]

    def _part(self, path: str, tag: Tag, part: nn.Module | Tensor) -> str:
        """The name of a module or constant on a processor; where both are the CPU, of one for both."""
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
